// SPDX-License-Identifier: Apache-2.0
#include "quatrain/nn/context_parallel.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <array>
#include <utility>

#include "quatrain/nn/check.h"
#include "quatrain/nn/head_exchange.h"

namespace quatrain {

std::unique_ptr<PlaceAttention> make_place_attention(Communicator& group,
                                                     const ContextSplit& split) {
  return split.gathers ? make_gathered_attention(group, split) : make_ring_attention(group, split);
}

ContextParallel::ContextParallel(Communicator& group, const ContextSplit& split,
                                 const MakePlaceAttention& make)
    : group_(group), split_(split), place_(make(group, split)) {
  CHECK(group.size() == split.degree && group.rank() == split.rank,
        "rank {} of {} for a context of {} ranks", group.rank(), group.size(), split.degree);
}
ContextParallel::~ContextParallel() = default;

at::Tensor ContextParallel::own(const at::Tensor& x, std::int64_t dim) const {
  if (!cuts()) return x;
  std::vector<at::Tensor> parts;
  for (const Range& range : split_.own(x.size(dim))) {
    parts.push_back(x.narrow(dim, range.begin, range.size()));
  }
  return at::cat(parts, dim);
}

ContextParallel::Attended ContextParallel::forward(const QkvHeads& x,
                                                   const ContextMask& mask) const {
  if (!cuts()) {
    kernels::AttentionOut out =
        kernels::attention(x.q, x.k, x.v, mask.scale, {mask.window, mask.documents_BS});
    return {std::move(out.out_BTHd), std::move(out.lse_BHT), {}, {}};
  }
  if (!exchanges()) {
    kernels::AttentionOut out = place_->forward(x, mask);
    return {std::move(out.out_BTHd), std::move(out.lse_BHT), {}, {}};
  }
  const HeadExchange exchange(group_, split_);
  const std::array<at::Tensor, 3> qkv{x.q, x.k, x.v};
  Attended result;
  result.heads = exchange.to_heads(qkv, mask.seq);
  const std::vector<at::Tensor> here = exchange.views(result.heads, qkv, mask.seq);
  kernels::AttentionOut out = place_->forward({here[0], here[1], here[2]}, mask);
  result.out_BTHd = at::empty({x.q.size(0), x.q.size(1), x.q.size(2), x.v.size(3)}, x.q.options());
  exchange.to_tokens({&out.out_BTHd, 1}, {&result.out_BTHd, 1}, mask.seq);
  result.heads_out = std::move(out.out_BTHd);
  result.lse = std::move(out.lse_BHT);
  return result;
}

void ContextParallel::backward(const at::Tensor& dout_BTHd, const QkvHeads& x,
                               const Attended& forward, const ContextMask& mask,
                               QkvHeads& grads) const {
  if (!cuts()) {
    return kernels::attention_backward(dout_BTHd, x.q, x.k, x.v, {forward.out_BTHd, forward.lse},
                                       mask.scale, {mask.window, mask.documents_BS}, grads.q,
                                       grads.k, grads.v);
  }
  if (!exchanges()) {
    return place_->backward(dout_BTHd, x, {forward.out_BTHd, forward.lse}, mask, grads);
  }
  const HeadExchange exchange(group_, split_);
  const std::array<at::Tensor, 3> own{grads.q, grads.k, grads.v};
  const std::vector<at::Tensor> qkv = exchange.views(forward.heads, own, mask.seq);
  const at::Tensor dout = exchange.to_heads({&dout_BTHd, 1}, mask.seq).view_as(forward.heads_out);
  const at::Tensor flat = at::empty_like(forward.heads);
  const std::vector<at::Tensor> terms = exchange.views(flat, own, mask.seq);
  QkvHeads here{terms[0], terms[1], terms[2]};
  place_->backward(dout, {qkv[0], qkv[1], qkv[2]}, {forward.heads_out, forward.lse}, mask, here);
  exchange.to_tokens(terms, own, mask.seq);
}

}  // namespace quatrain
