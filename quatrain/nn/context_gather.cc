// SPDX-License-Identifier: Apache-2.0
// Keys and values of the whole sequence on every rank, for the time of one layer (Llama 3,
// arXiv:2407.21783, section 3.3.2): gathered again in the backward, not kept.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "quatrain/nn/check.h"
#include "quatrain/nn/context_parallel.h"
#include "quatrain/nn/param.h"

namespace quatrain {
namespace {

class GatheredAttention final : public PlaceAttention {
 public:
  GatheredAttention(Communicator& group, const ContextSplit& split)
      : group_(group), split_(split) {}

  kernels::AttentionOut forward(const QkvHeads& x, const ContextMask& mask) const override {
    const QkvHeads all = gather(x, mask);
    kernels::AttentionOut whole{
        at::empty({x.q.size(0), x.q.size(1), x.q.size(2), x.v.size(3)}, x.q.options()),
        at::empty({x.q.size(0), x.q.size(2), x.q.size(1)},
                  x.q.options().dtype(wide(x.q.scalar_type())))};
    for_each_own(mask, [&](const Range& at, std::int64_t begin) {
      const kernels::AttentionOut part =
          kernels::attention(x.q.narrow(1, begin, at.size()), all.k.narrow(1, 0, at.end),
                             all.v.narrow(1, 0, at.end), mask.scale, mask_until(at.end, mask));
      whole.out_BTHd.narrow(1, begin, at.size()).copy_(part.out_BTHd);
      whole.lse_BHT.narrow(2, begin, at.size()).copy_(part.lse_BHT);
    });
    return whole;
  }

  void backward(const at::Tensor& dout, const QkvHeads& x, const kernels::AttentionOut& forward,
                const ContextMask& mask, QkvHeads& grads) const override {
    const QkvHeads all = gather(x, mask);
    const at::TensorOptions sums = x.k.options().dtype(wide(x.k.scalar_type()));
    const at::Tensor dk = at::zeros(all.k.sizes(), sums), dv = at::zeros(all.v.sizes(), sums);
    for_each_own(mask, [&](const Range& at, std::int64_t begin) {
      const auto own = [&](const at::Tensor& t) { return t.narrow(1, begin, at.size()); };
      const at::Tensor k = all.k.narrow(1, 0, at.end), v = all.v.narrow(1, 0, at.end);
      at::Tensor dq = own(grads.q);
      at::Tensor k_term = at::empty(k.sizes(), k.options()),
                 v_term = at::empty(v.sizes(), v.options());
      const at::Tensor lse = forward.lse_BHT.narrow(2, begin, at.size());
      kernels::attention_backward(own(dout), own(x.q), k, v, {own(forward.out_BTHd), lse},
                                  mask.scale, mask_until(at.end, mask), dq, k_term, v_term);
      dk.narrow(1, 0, at.end).add_(k_term);
      dv.narrow(1, 0, at.end).add_(v_term);
    });
    scatter({{}, dk, dv}, mask, grads);
  }

 private:
  // Calls f(range, first local token) for this rank's runs of tokens.
  template <class F>
  void for_each_own(const ContextMask& mask, const F& f) const {
    std::int64_t begin = 0;
    for (const Range& range : split_.own(mask.seq)) {
      if (range.size() > 0) f(range, begin);
      begin += range.size();
    }
  }
  static kernels::AttentionMask mask_until(std::int64_t end, const ContextMask& mask) {
    kernels::AttentionMask out{.window = mask.window};
    if (mask.documents_BS.defined()) out.documents_BS = mask.documents_BS.narrow(1, 0, end);
    return out;
  }

  // Tokens of all ranks, [S, B, K, d + dv] in the order of ranks.
  std::vector<std::int64_t> tokens(const ContextMask& mask) const {
    std::vector<std::int64_t> rows;
    for (int rank = 0; rank < split_.degree; ++rank) {
      rows.push_back(total(split_.of_rank(mask.seq, rank)));
    }
    return rows;
  }
  static at::Tensor packed_like(const QkvHeads& x, std::int64_t rows) {
    return at::empty({rows, x.k.size(0), x.k.size(2), x.k.size(3) + x.v.size(3)}, x.k.options());
  }
  // k and v of a packed tensor, [B, rows, K, d].
  static std::pair<at::Tensor, at::Tensor> unpacked(const at::Tensor& packed, const QkvHeads& x) {
    const at::Tensor all = packed.transpose(0, 1);
    return {all.narrow(3, 0, x.k.size(3)), all.narrow(3, x.k.size(3), x.v.size(3))};
  }
  // Calls f(place in the order of ranks, range of the sequence).
  template <class F>
  void for_each_run(const ContextMask& mask, const F& f) const {
    std::int64_t row = 0;
    for (int rank = 0; rank < split_.degree; ++rank) {
      for (const Range& range : split_.of_rank(mask.seq, rank)) {
        if (range.size() > 0) f(row, range);
        row += range.size();
      }
    }
  }

  QkvHeads gather(const QkvHeads& x, const ContextMask& mask) const {
    const at::Tensor own = packed_like(x, x.k.size(1));
    const auto [k, v] = unpacked(own, x);
    k.copy_(x.k);
    v.copy_(x.v);
    const at::Tensor in_order = packed_like(x, mask.seq);
    group_.all_gather(in_order, own, tokens(mask)).wait();
    const at::Tensor all = packed_like(x, mask.seq);
    for_each_run(mask, [&](std::int64_t row, const Range& range) {
      all.narrow(0, range.begin, range.size()).copy_(in_order.narrow(0, row, range.size()));
    });
    const auto [all_k, all_v] = unpacked(all, x);
    return {x.q, all_k, all_v};
  }

  // Sums over ranks of the gradients of the whole sequence's keys and values, to their owners.
  void scatter(const QkvHeads& sums, const ContextMask& mask, QkvHeads& grads) const {
    const at::Tensor in_order = packed_like(grads, mask.seq);
    const auto [k, v] = unpacked(in_order, grads);
    for_each_run(mask, [&, k = k, v = v](std::int64_t row, const Range& range) {
      k.narrow(1, row, range.size()).copy_(sums.k.narrow(1, range.begin, range.size()));
      v.narrow(1, row, range.size()).copy_(sums.v.narrow(1, range.begin, range.size()));
    });
    const at::Tensor own = packed_like(grads, grads.k.size(1));
    group_.reduce_scatter(own, in_order, tokens(mask), ReduceOp::kSum).wait();
    const auto [own_k, own_v] = unpacked(own, grads);
    grads.k.copy_(own_k);
    grads.v.copy_(own_v);
  }

  Communicator& group_;
  ContextSplit split_;
};

}  // namespace

std::unique_ptr<PlaceAttention> make_gathered_attention(Communicator& group,
                                                        const ContextSplit& split) {
  return std::make_unique<GatheredAttention>(group, split);
}

}  // namespace quatrain
