// SPDX-License-Identifier: Apache-2.0
// Products with a matrix that is cut over the tensor-parallel ranks (Shoeybi et al.,
// arXiv:1909.08053, section 3): along its outputs, or along its inputs. Between a column- and a
// row-parallel one every rank computes with its own share of heads or feed-forward width.
// Shapes: N rows of the micro-batch, R of them this rank's residual stream, I in, O out (local).
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string_view>

#include "quatrain/nn/layer.h"
#include "quatrain/nn/linear.h"
#include "quatrain/nn/tensor_parallel.h"

namespace quatrain {

// Called while a collective is in flight.
using Fill = std::function<void()>;

// y_NO = x W^T + b of this rank's outputs; reads the residual stream.
class ColumnLinear {
 public:
  // `kept`: the stash's row of x, what the weight half reads.
  ColumnLinear(const TensorParallel& tp, const ParamRange& weight, const ParamRange& bias,
               std::string_view kept);

  // Keeps x for the weight half (all rows, or own ones that are gathered again) when `keep`.
  at::Tensor forward(const at::Tensor& x_RI, const Pass& pass, Stash& stash, bool keep) const;
  at::Tensor backward_input(const at::Tensor& dy_NO, const Fill& fill) const;  // dx_RI
  // += through pass.grads; takes x.
  void backward_weight(const at::Tensor& dy_NO, const Pass& pass, Stash& stash) const;

  bool needs_x() const { return linear_.needs_x(); }  // in the weight half
  bool needs_dy() const { return linear_.needs_dy(); }
  bool has_x(const Stash& stash) const { return !needs_x() || stash.has(kept_); }

 private:
  const TensorParallel& tp_;
  Linear linear_;
  std::string_view kept_;
};

// y_RO = sum over ranks of x W^T, + b once; leaves the residual stream.
class RowLinear {
 public:
  // `kept`: the stash's row of dy.
  RowLinear(const TensorParallel& tp, const ParamRange& weight, const ParamRange& bias,
            std::string_view kept);

  at::Tensor forward(const at::Tensor& x_NI) const;
  at::Tensor forward_onto(const at::Tensor& residual_RO, const at::Tensor& x_NI) const;
  // dx_NI; keeps dy for the weight half.
  at::Tensor backward_input(const at::Tensor& dy_RO, const Pass& pass, Stash& stash,
                            const Fill& fill) const;
  // += through pass.grads; takes dy.
  void backward_weight(const at::Tensor& x_NI, const Pass& pass, Stash& stash) const;

  bool needs_x() const { return weight_.any_trainable(); }
  bool needs_dy() const { return weight_.any_trainable() || bias_.any_trainable(); }
  bool has_dy(const Stash& stash) const { return stash.has(kept_); }

 private:
  at::Tensor summed(const at::Tensor& x_NI) const;
  at::Tensor summed_in_chunks(const at::Tensor& x_NI, int chunks) const;
  // A weight half that follows at once finds all rows of dy still there.
  bool keeps_whole(const Pass& pass) const {
    return pass.fused_backward || !tp_.options().gather_again;
  }

  const TensorParallel& tp_;
  ParamRange weight_;
  ParamRange bias_;
  Linear linear_;  // with the bias
  Linear terms_;   // without
  std::string_view kept_;
};

}  // namespace quatrain
