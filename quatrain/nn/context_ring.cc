// SPDX-License-Identifier: Apache-2.0
// Ring attention (Liu et al., arXiv:2310.01889): each place computes with the keys and values it
// has while the next ones arrive. Forward, parts of the softmax are merged; backward, the final
// log-sum-exp makes every block's weights at once, and gradients of a block's keys and values go
// straight home to the rank whose tokens they are. At most two blocks are here at a time.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <utility>

#include "quatrain/nn/check.h"
#include "quatrain/nn/context_parallel.h"
#include "quatrain/nn/param.h"

namespace quatrain {
namespace {

// Keys and values of one place, or their gradients, as one message.
struct Block {
  at::Tensor flat, k, v;
};

Block block_like(const QkvHeads& x, std::int64_t tokens) {
  const auto sizes = [tokens](const at::Tensor& t) {
    return std::vector<std::int64_t>{t.size(0), tokens, t.size(2), t.size(3)};
  };
  const auto numel = [&](const at::Tensor& t) {
    return t.size(0) * tokens * t.size(2) * t.size(3);
  };
  Block block;
  block.flat = at::empty({numel(x.k) + numel(x.v)}, x.k.options());
  block.k = block.flat.narrow(0, 0, numel(x.k)).view(sizes(x.k));
  block.v = block.flat.narrow(0, numel(x.k), numel(x.v)).view(sizes(x.v));
  return block;
}

// A run of neighbouring tokens: where they lie in the sequence, and in a rank's tensors.
struct Stretch {
  Range at;
  std::int64_t begin;
  at::Tensor of(const at::Tensor& x_BT) const { return x_BT.narrow(1, begin, at.size()); }
};

std::vector<Stretch> stretches(const std::vector<Range>& ranges) {
  std::vector<Stretch> all;
  std::int64_t begin = 0;
  for (const Range& range : ranges) {
    if (range.size() > 0) all.push_back({range, begin});
    begin += range.size();
  }
  return all;
}

kernels::AttentionMask mask_of(const Stretch& queries, const Stretch& keys,
                               const ContextMask& mask) {
  kernels::AttentionMask out{.window = mask.window,
                             .first_query = queries.at.begin - keys.at.begin};
  if (mask.documents_BS.defined()) {
    out.documents_BS = mask.documents_BS.narrow(1, keys.at.begin, keys.at.size());
    out.documents_BT = mask.documents_BS.narrow(1, queries.at.begin, queries.at.size());
  }
  return out;
}

class RingAttention final : public PlaceAttention {
 public:
  RingAttention(Communicator& group, const ContextSplit& split) : group_(group), split_(split) {}

  kernels::AttentionOut forward(const QkvHeads& x, const ContextMask& mask) const override {
    if (places() == 1) {
      return kernels::attention(x.q, x.k, x.v, mask.scale, {mask.window, mask.documents_BS});
    }
    std::vector<kernels::AttentionOut> merged(own(mask).size());
    around(x, mask, [&](int, const std::vector<Stretch>& keys, const Block& block) {
      for (std::size_t i = 0; i < merged.size(); ++i) {
        for (const Stretch& key : keys) add_part(merged[i], x, own(mask)[i], key, block, mask);
      }
    });
    std::vector<at::Tensor> outs, lses;
    for (kernels::AttentionOut& part : merged) {
      outs.push_back(part.out_BTHd.to(x.q.scalar_type()));
      lses.push_back(std::move(part.lse_BHT));
      part = {};
    }
    if (outs.empty()) return kernels::attention(x.q, x.k, x.v, mask.scale, {mask.window});
    return {outs.size() == 1 ? outs[0] : at::cat(outs, 1),
            lses.size() == 1 ? lses[0] : at::cat(lses, 2)};
  }

  void backward(const at::Tensor& dout, const QkvHeads& x, const kernels::AttentionOut& forward,
                const ContextMask& mask, QkvHeads& grads) const override {
    if (places() == 1) {
      return kernels::attention_backward(dout, x.q, x.k, x.v, forward, mask.scale,
                                         {mask.window, mask.documents_BS}, grads.q, grads.k,
                                         grads.v);
    }
    const at::ScalarType sum = wide(x.q.scalar_type());
    const QkvHeads sums{at::zeros_like(x.q, sum), at::zeros_like(x.k, sum),
                        at::zeros_like(x.v, sum)};
    GoingHome home;
    around(x, mask, [&](int step, const std::vector<Stretch>& keys, const Block& block) {
      if (step == 0) return add_terms(dout, x, forward, keys, block, mask, sums.q, sums.k, sums.v);
      Block terms = block_like(x, block.k.size(1));
      terms.flat.zero_();
      add_terms(dout, x, forward, keys, block, mask, sums.q, terms.k, terms.v);
      home.land(sums);
      home.start(*this, step, std::move(terms), block_like(x, x.k.size(1)));
    });
    home.land(sums);
    grads.q.copy_(sums.q);
    grads.k.copy_(sums.k);
    grads.v.copy_(sums.v);
  }

 private:
  // Gradients of other ranks' tokens on their way there, and of this rank's on their way here.
  struct GoingHome {
    void start(const RingAttention& ring, int step, Block out, Block in) {
      away = std::move(out);
      here = std::move(in);
      received = ring.group_.recv(here.flat, ring.rank_at(step));
      sent = ring.group_.send(away.flat, ring.rank_at(-step));
    }
    void land(const QkvHeads& sums) {
      if (!here.flat.defined()) return;
      received.wait();
      sent.wait();
      sums.k.add_(here.k);
      sums.v.add_(here.v);
      away = here = {};
    }
    Block away, here;
    Work sent, received;
  };

  int places() const { return split_.places(); }
  // The rank `steps` places further, with the same heads.
  int place_at(int steps) const { return (split_.place() + steps + places()) % places(); }
  int rank_at(int steps) const {
    return place_at(steps) * split_.heads + split_.rank % split_.heads;
  }
  std::vector<Stretch> own(const ContextMask& mask) const {
    return stretches(split_.of_place(mask.seq, split_.place()));
  }

  // Calls f(step, stretches, block) for the keys of every place, this rank's first and then those
  // of the places before it; the next block is on its way meanwhile.
  template <class F>
  void around(const QkvHeads& x, const ContextMask& mask, const F& f) const {
    Block block = block_like(x, x.k.size(1));
    block.k.copy_(x.k);
    block.v.copy_(x.v);
    for (int step = 0; step < places(); ++step) {
      Block next;
      Work sent, received;
      if (step + 1 < places()) {
        next = block_like(x, total(split_.of_place(mask.seq, place_at(-step - 1))));
        received = group_.recv(next.flat, rank_at(-1));
        sent = group_.send(block.flat, rank_at(1));
      }
      f(step, stretches(split_.of_place(mask.seq, place_at(-step))), block);
      sent.wait();
      received.wait();
      block = std::move(next);
    }
  }

  static bool sees(const Stretch& queries, const Stretch& keys, const ContextMask& mask) {
    return causal_pairs(queries.at, keys.at, mask.window) > 0;
  }

  static void add_part(kernels::AttentionOut& all, const QkvHeads& x, const Stretch& queries,
                       const Stretch& keys, const Block& block, const ContextMask& mask) {
    if (!sees(queries, keys, mask)) return;
    kernels::AttentionOut part =
        kernels::attention_part(queries.of(x.q), keys.of(block.k), keys.of(block.v), mask.scale,
                                mask_of(queries, keys, mask));
    if (all.out_BTHd.defined()) {
      kernels::merge_attention(all, part);
    } else {
      all = std::move(part);
    }
  }

  // += the terms of all own queries against a block's keys.
  void add_terms(const at::Tensor& dout, const QkvHeads& x, const kernels::AttentionOut& forward,
                 const std::vector<Stretch>& keys, const Block& block, const ContextMask& mask,
                 const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv) const {
    for (const Stretch& query : own(mask)) {
      const at::Tensor lse = forward.lse_BHT.narrow(2, query.begin, query.at.size());
      for (const Stretch& key : keys) {
        if (!sees(query, key, mask)) continue;
        const at::Tensor q = query.of(x.q), k = key.of(block.k), v = key.of(block.v);
        at::Tensor q_term = at::empty_like(q), k_term = at::empty_like(k),
                   v_term = at::empty_like(v);
        kernels::attention_backward(query.of(dout), q, k, v, {query.of(forward.out_BTHd), lse},
                                    mask.scale, mask_of(query, key, mask), q_term, k_term, v_term);
        query.of(dq).add_(q_term);
        key.of(dk).add_(k_term);
        key.of(dv).add_(v_term);
      }
    }
  }

  Communicator& group_;
  ContextSplit split_;
};

}  // namespace

std::unique_ptr<PlaceAttention> make_ring_attention(Communicator& group,
                                                    const ContextSplit& split) {
  return std::make_unique<RingAttention>(group, split);
}

}  // namespace quatrain
