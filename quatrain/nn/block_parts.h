// SPDX-License-Identifier: Apache-2.0
// The two parts of a block, each with its backward written out and split as a layer's is: what
// mixes positions, and what works on each by itself. Norms and residuals are the block's.
// Shapes: N = B T rows of the micro-batch, R of the residual stream, D hidden.
#pragma once
#include <ATen/core/Tensor.h>

#include "quatrain/nn/layer.h"
#include "quatrain/nn/parallel_linear.h"

namespace quatrain {

class ContextParallel;
class ExpertParallel;

// Whom the layers of a model share it with; borrowed.
struct ModelRanks {
  const TensorParallel& tp;   // each matrix
  const ExpertParallel& ep;   // experts
  const ContextParallel& cp;  // sequences
};

class SelfAttention {
 public:
  virtual ~SelfAttention() = default;
  // x: the norm's output, kept when `keep_x`. Returns the projection's output after dropout, in a
  // buffer of its own.
  virtual at::Tensor forward(const at::Tensor& x_RD, const Pass& pass, Stash& stash,
                             bool keep_x) const = 0;
  virtual at::Tensor backward_input(const at::Tensor& dy_RD, const Pass& pass, Stash& stash,
                                    const Fill& fill) const = 0;
  // += through pass.grads. Runs the next product's weight half that the stash holds all for (the
  // norms' within the part with the first); false when there is none.
  virtual bool weight_piece(const Pass& pass, Stash& stash) const = 0;
  virtual bool needs_x() const = 0;
};

class FeedForward {
 public:
  virtual ~FeedForward() = default;
  // residual + dropout(part(x)); x: the norm's output, kept when `keep_x`.
  virtual at::Tensor forward(const at::Tensor& x_RD, const at::Tensor& residual_RD,
                             const Pass& pass, Stash& stash, bool keep_x) const = 0;
  // dx alone: the residual's gradient is dy itself.
  virtual at::Tensor backward_input(const at::Tensor& dy_RD, const Pass& pass, Stash& stash,
                                    const Fill& fill) const = 0;
  // += through pass.grads. Runs the next product's weight half that the stash holds all for; false
  // when there is none.
  virtual bool weight_piece(const Pass& pass, Stash& stash) const = 0;
  virtual bool needs_x() const = 0;
};

// Rows whose norm gains' gradients are added up in the input half: a sequence, or, where rows are
// cut, all of the rank's.
std::int64_t gain_leaf(const Pass& pass, const TensorParallel& tp);

}  // namespace quatrain
