// SPDX-License-Identifier: Apache-2.0
#include "quatrain/nn/head_exchange.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <numeric>

#include "quatrain/nn/check.h"
#include "quatrain/nn/param.h"

namespace quatrain {
namespace {

std::int64_t sum(std::span<const std::int64_t> numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
}

at::Tensor next_view(const at::Tensor& flat, std::int64_t& at, std::vector<std::int64_t> sizes) {
  std::int64_t numel = 1;
  for (const std::int64_t size : sizes) numel *= size;
  const at::Tensor view = flat.narrow(0, at, numel).view(sizes);
  at += numel;
  return view;
}

}  // namespace

std::vector<std::int64_t> HeadExchange::tokens_of_place(std::int64_t seq) const {
  std::vector<std::int64_t> tokens;
  for (int i = 0; i < split_.heads; ++i) {
    tokens.push_back(total(split_.of_rank(seq, split_.place() * split_.heads + i)));
  }
  return tokens;
}

std::vector<std::int64_t> HeadExchange::rows_of_group(
    std::span<const std::int64_t> of_place) const {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(split_.degree), 0);
  std::copy(of_place.begin(), of_place.end(), rows.begin() + split_.place() * split_.heads);
  return rows;
}

Range HeadExchange::heads_of(const at::Tensor& own, int index) const {
  const std::int64_t heads = own.size(2);
  if (heads % split_.heads == 0) return piece(heads, split_.heads, index);
  CHECK(split_.heads % heads == 0, "{} ranks share {} heads unevenly", split_.heads, heads);
  const std::int64_t head = index * heads / split_.heads;
  return {head, head + 1};
}

std::vector<at::Tensor> HeadExchange::views(const at::Tensor& flat, std::span<const at::Tensor> own,
                                            std::int64_t seq) const {
  const std::int64_t tokens = sum(tokens_of_place(seq));
  const int index = split_.rank % split_.heads;
  std::vector<at::Tensor> views;
  std::int64_t at = 0;
  for (const at::Tensor& x : own) {
    views.push_back(next_view(flat, at, {x.size(0), tokens, heads_of(x, index).size(), x.size(3)}));
  }
  return views;
}

at::Tensor HeadExchange::to_heads(std::span<const at::Tensor> own, std::int64_t seq) const {
  const std::vector<std::int64_t> tokens = tokens_of_place(seq);
  const int index = split_.rank % split_.heads;
  std::vector<at::Tensor> out;
  std::vector<std::int64_t> sent, received;
  for (int peer = 0; peer < split_.heads; ++peer) {
    std::int64_t elements = 0, arriving = 0;
    for (const at::Tensor& x : own) {
      const Range theirs = heads_of(x, peer), mine = heads_of(x, index);
      out.push_back(x.narrow(2, theirs.begin, theirs.size()).reshape({-1}));
      elements += out.back().numel();
      arriving += x.size(0) * tokens[static_cast<std::size_t>(peer)] * mine.size() * x.size(3);
    }
    sent.push_back(elements);
    received.push_back(arriving);
  }
  const at::Tensor in = at::empty({sum(received)}, own[0].options());
  group_.all_to_all(in, at::cat(out), rows_of_group(received), rows_of_group(sent)).wait();
  at::Tensor flat = at::empty_like(in);
  const std::vector<at::Tensor> whole = views(flat, own, seq);
  std::int64_t at = 0, token = 0;
  for (const std::int64_t count : tokens) {
    for (std::size_t i = 0; i < own.size(); ++i) {
      const at::Tensor& x = whole[i];
      x.narrow(1, token, count).copy_(next_view(in, at, {x.size(0), count, x.size(2), x.size(3)}));
    }
    token += count;
  }
  return flat;
}

void HeadExchange::to_tokens(std::span<const at::Tensor> heads, std::span<const at::Tensor> own,
                             std::int64_t seq) const {
  const std::vector<std::int64_t> tokens = tokens_of_place(seq);
  std::vector<at::Tensor> out;
  std::vector<std::int64_t> sent, received;
  std::int64_t token = 0;
  for (int peer = 0; peer < split_.heads; ++peer) {
    const std::int64_t count = tokens[static_cast<std::size_t>(peer)];
    std::int64_t elements = 0, arriving = 0;
    for (std::size_t i = 0; i < own.size(); ++i) {
      out.push_back(heads[i].narrow(1, token, count).reshape({-1}));
      elements += out.back().numel();
      arriving += own[i].numel() / own[i].size(2) * heads_of(own[i], peer).size();
    }
    sent.push_back(elements);
    received.push_back(arriving);
    token += count;
  }
  const at::Tensor in = at::empty({sum(received)}, heads[0].options());
  group_.all_to_all(in, at::cat(out), rows_of_group(received), rows_of_group(sent)).wait();
  std::vector<at::Tensor> sums;
  for (const at::Tensor& x : own) {
    const bool shared = x.size(2) % split_.heads != 0;
    sums.push_back(shared ? at::zeros_like(x, x.options().dtype(wide(x.scalar_type())))
                          : at::Tensor(x));
  }
  std::int64_t at = 0;
  for (int peer = 0; peer < split_.heads; ++peer) {
    for (std::size_t i = 0; i < own.size(); ++i) {
      const Range mine = heads_of(own[i], peer);
      const at::Tensor part =
          next_view(in, at, {own[i].size(0), own[i].size(1), mine.size(), own[i].size(3)});
      const at::Tensor to = sums[i].narrow(2, mine.begin, mine.size());
      if (sums[i].is_same(own[i])) {
        to.copy_(part);
      } else {
        to.add_(part);
      }
    }
  }
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (!sums[i].is_same(own[i])) own[i].copy_(sums[i]);
  }
}

}  // namespace quatrain
