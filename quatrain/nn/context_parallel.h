// SPDX-License-Identifier: Apache-2.0
// Attention over sequences whose tokens are shared by the ranks of a group (spec/context_split.h
// names the styles). What a rank holds of q, k and v are its own tokens'; with one rank this is
// kernels::attention and nothing more.
// Shapes: B sequences of S tokens, T of them this rank's, H query heads, K of keys and values.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "quatrain/comm/communicator.h"
#include "quatrain/kernels/attention.h"
#include "quatrain/spec/context_split.h"

namespace quatrain {

// What a query sees of its sequence, whole on every rank.
struct ContextMask {
  std::int64_t seq = 0;  // S
  double scale = 1.0;
  std::int64_t window = 0;
  at::Tensor documents_BS = {};  // or undefined
};

struct QkvHeads {
  at::Tensor q, k, v;  // [B, tokens, heads, d]; the last dim has stride 1
};

// Attention for the tokens of a place, with the heads that are here.
class PlaceAttention {
 public:
  virtual ~PlaceAttention() = default;
  virtual kernels::AttentionOut forward(const QkvHeads& x, const ContextMask& mask) const = 0;
  // Writes (=) `grads`.
  virtual void backward(const at::Tensor& dout, const QkvHeads& x,
                        const kernels::AttentionOut& forward, const ContextMask& mask,
                        QkvHeads& grads) const = 0;
};

// nn/context_ring.cc and nn/context_gather.cc: groups of one place are the kernel itself.
std::unique_ptr<PlaceAttention> make_ring_attention(Communicator& group, const ContextSplit& split);
std::unique_ptr<PlaceAttention> make_gathered_attention(Communicator& group,
                                                        const ContextSplit& split);
// Of the two, the style's. Whoever looks at attention from outside gives a maker that wraps it.
std::unique_ptr<PlaceAttention> make_place_attention(Communicator& group,
                                                     const ContextSplit& split);
using MakePlaceAttention =
    std::function<std::unique_ptr<PlaceAttention>(Communicator&, const ContextSplit&)>;

class ContextParallel {
 public:
  // `group` (borrowed): the ranks, in the order of their places.
  ContextParallel(Communicator& group, const ContextSplit& split,
                  const MakePlaceAttention& make = make_place_attention);
  ~ContextParallel();

  const ContextSplit& split() const { return split_; }
  bool cuts() const { return split_.degree > 1; }
  Communicator& group() const { return group_; }
  // Whether ranks exchange tokens for heads: then the backward reads what was exchanged, and not
  // this rank's own q, k and v.
  bool exchanges() const { return split_.heads > 1; }
  // Of a tensor along `dim`, whole sequences, this rank's tokens.
  at::Tensor own(const at::Tensor& x, std::int64_t dim) const;

  struct Attended {
    at::Tensor out_BTHd;   // of own tokens
    at::Tensor lse;        // wide: of own tokens and all heads, or as `heads_out` lies
    at::Tensor heads;      // exchanged q, k and v, flat; defined where ranks exchange
    at::Tensor heads_out;  // the output for them
  };
  Attended forward(const QkvHeads& x, const ContextMask& mask) const;
  // Writes (=) `grads`, of own tokens. `x`: as the forward had it; where ranks exchange, its
  // tensors may be undefined.
  void backward(const at::Tensor& dout_BTHd, const QkvHeads& x, const Attended& forward,
                const ContextMask& mask, QkvHeads& grads) const;

 private:
  Communicator& group_;
  ContextSplit split_;
  std::unique_ptr<PlaceAttention> place_;
};

}  // namespace quatrain
