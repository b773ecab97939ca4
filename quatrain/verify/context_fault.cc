// SPDX-License-Identifier: Apache-2.0
#include "quatrain/verify/context_fault.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace quatrain {
namespace {

class Around final : public PlaceAttention {
 public:
  Around(std::unique_ptr<PlaceAttention> right, ChangedAttention& fault)
      : right_(std::move(right)), fault_(fault) {}
  kernels::AttentionOut forward(const QkvHeads& x, const ContextMask& mask) const override {
    return fault_.forward(*right_, x, mask);
  }
  void backward(const at::Tensor& dout, const QkvHeads& x, const kernels::AttentionOut& forward,
                const ContextMask& mask, QkvHeads& grads) const override {
    fault_.backward(*right_, dout, x, forward, mask, grads);
  }

 private:
  std::unique_ptr<PlaceAttention> right_;
  ChangedAttention& fault_;
};

// Of the tokens of ranges; undefined where there is one document.
at::Tensor documents_of(const std::vector<Range>& ranges, const ContextMask& mask) {
  if (!mask.documents_BS.defined()) return {};
  std::vector<at::Tensor> parts;
  for (const Range& range : ranges) {
    parts.push_back(mask.documents_BS.narrow(1, range.begin, range.size()));
  }
  return at::cat(parts, 1);
}

// The ranks of a place hold its tokens one after the other.
struct RankTokens {
  std::int64_t begin;  // in the place's tensors
  std::int64_t size;
  at::Tensor documents;
};
std::vector<RankTokens> ranks_of_place(const ContextSplit& split, int place,
                                       const ContextMask& mask) {
  std::vector<RankTokens> all;
  std::int64_t begin = 0;
  for (int i = 0; i < split.heads; ++i) {
    const std::vector<Range> own = split.of_rank(mask.seq, place * split.heads + i);
    const std::int64_t size = total(own);
    if (size > 0) all.push_back({begin, size, documents_of(own, mask)});
    begin += size;
  }
  return all;
}

void add_part(kernels::AttentionOut& all, kernels::AttentionOut part) {
  if (all.out_BTHd.defined()) {
    kernels::merge_attention(all, part);
  } else {
    all = std::move(part);
  }
}

// Queries of one rank after those of another.
kernels::AttentionOut joined(const std::vector<kernels::AttentionOut>& parts,
                             at::ScalarType dtype) {
  std::vector<at::Tensor> outs, lses;
  for (const kernels::AttentionOut& part : parts) {
    outs.push_back(part.out_BTHd);
    lses.push_back(part.lse_BHT);
  }
  return {at::cat(outs, 1).to(dtype), at::cat(lses, 2)};
}

}  // namespace

void LocalPositions::on_pass(int, Pass& pass) {
  if (arguments().mesh.degree(Axis::kCp) == 1) return;
  met();
  const at::Tensor& right = pass.positions_BT;
  pass.positions_BT = at::arange(right.size(1), right.options()).expand_as(right).contiguous();
}

void ChangedAttention::change(RankJobOptions& options) {
  options.build.place_attention = [this](Communicator& group, const ContextSplit& split) {
    context_ = &group;
    split_ = split;
    return std::make_unique<Around>(make_place_attention(group, split), *this);
  };
}

void StaleBlock::backward(const PlaceAttention& right, const at::Tensor& dout, const QkvHeads& x,
                          const kernels::AttentionOut& forward, const ContextMask& mask,
                          QkvHeads& grads) {
  in_backward_ = on_ring();
  right.backward(dout, x, forward, mask, grads);
  in_backward_ = false;
  keys_.clear();
}

// The first to be sent are a place's own keys and values; what came is passed on.
bool StaleBlock::goes_home(const at::Tensor& sent) const {
  return !keys_.empty() && std::none_of(keys_.begin(), keys_.end(), [&](const at::Tensor& keys) {
    return keys.is_alias_of(sent);
  });
}

Work StaleBlock::run(const Call& call, Communicator& group, const Forward& forward) {
  if (!in_backward_ || group.name() != "cp") return forward(call);
  if (call.operation == Operation::kRecv) keys_.push_back(call.out);
  if (call.operation != Operation::kSend) return forward(call);
  if (!goes_home(call.in)) {
    keys_.push_back(call.in);
    return forward(call);
  }
  const at::Tensor stale = std::exchange(before_, call.in.clone());
  if (!stale.defined()) return forward(call);
  met();
  // Blocks of places may be uneven.
  const std::int64_t both = std::min(stale.numel(), call.in.numel());
  Call changed = call;
  changed.in = call.in.clone();
  changed.in.narrow(0, 0, both).copy_(stale.narrow(0, 0, both));
  return forward(changed);
}

kernels::AttentionOut OwnLse::forward(const PlaceAttention& right, const QkvHeads& x,
                                      const ContextMask& mask) {
  kernels::AttentionOut out = right.forward(x, mask);
  if (!on_ring() || x.q.size(1) == 0) return out;
  met();
  const at::Tensor documents = documents_of(split().of_place(mask.seq, split().place()), mask);
  const kernels::AttentionMask own{.window = mask.window, .documents_BS = documents};
  out.lse_BHT = kernels::attention(x.q, x.k, x.v, mask.scale, own).lse_BHT;
  return out;
}

// Of the place `step` before this one on the ring; all ranks ask in the same order.
QkvHeads LocalMask::keys_of(int step, const QkvHeads& x, const ContextMask& mask) {
  if (step == 0) return x;
  const int places = split().places();
  const auto rank_at = [&](int steps) {
    const int place = (split().place() + steps + places) % places;
    return place * split().heads + split().rank % split().heads;
  };
  const std::int64_t tokens = total(split().of_place(mask.seq, rank_at(-step) / split().heads));
  const auto exchanged = [&](const at::Tensor& own) {
    const at::Tensor theirs =
        at::empty({own.size(0), tokens, own.size(2), own.size(3)}, own.options());
    Work received = context().recv(theirs, rank_at(-step));
    context().send(own.contiguous(), rank_at(step)).wait();
    received.wait();
    return theirs;
  };
  return {{}, exchanged(x.k), exchanged(x.v)};
}

kernels::AttentionOut LocalMask::forward(const PlaceAttention& right, const QkvHeads& x,
                                         const ContextMask& mask) {
  const std::vector<RankTokens> queries = ranks_of_place(split(), split().place(), mask);
  if (split().degree == 1) return right.forward(x, mask);
  met();
  std::vector<kernels::AttentionOut> merged(queries.size());
  for (int step = 0; step < split().places(); ++step) {
    const int place = (split().place() - step + split().places()) % split().places();
    const QkvHeads block = keys_of(step, x, mask);
    for (const RankTokens& keys : ranks_of_place(split(), place, mask)) {
      const at::Tensor k = block.k.narrow(1, keys.begin, keys.size);
      const at::Tensor v = block.v.narrow(1, keys.begin, keys.size);
      for (std::size_t i = 0; i < queries.size(); ++i) {
        const at::Tensor q = x.q.narrow(1, queries[i].begin, queries[i].size);
        const kernels::AttentionMask local{.window = mask.window,
                                           .documents_BS = keys.documents,
                                           .first_query = 0,
                                           .documents_BT = queries[i].documents};
        add_part(merged[i], kernels::attention_part(q, k, v, mask.scale, local));
      }
    }
  }
  if (merged.empty()) return kernels::attention(x.q, x.k, x.v, mask.scale, {});
  return joined(merged, x.q.scalar_type());
}

}  // namespace quatrain
