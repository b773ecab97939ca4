// SPDX-License-Identifier: Apache-2.0
// y = x W^T + b for one matrix or several that share their input (q, k, v; gate, up) as one GEMM.
// Keeps nothing: its owner knows which tensors live on in any case.
// Shapes: N rows, I in, O out (of all fused matrices together).
#pragma once
#include <ATen/core/Tensor.h>

#include "quatrain/nn/layer.h"

namespace quatrain {

class Linear {
 public:
  // `bias` may be absent; both cover the same matrices.
  explicit Linear(const ParamRange& weight, const ParamRange& bias = {});

  at::Tensor forward(const at::Tensor& x_NI) const;
  // residual + x W^T + b, in one pass over the result where the dtype is its own wide one.
  at::Tensor forward_onto(const at::Tensor& residual_NO, const at::Tensor& x_NI) const;
  at::Tensor backward_input(const at::Tensor& dy_NO) const;  // dx_NI
  // += through the sink. x may be undefined when the weight needs none.
  void backward_weight(GradSink& grads, const at::Tensor& dy_NO, const at::Tensor& x_NI) const;

  bool needs_x() const { return weight_.any_trainable(); }  // in the weight half
  bool needs_dy() const { return weight_.any_trainable() || bias_.any_trainable(); }
  bool has_bias() const { return bias_.present(); }
  std::int64_t out_local() const { return out_local_; }

 private:
  ParamRange weight_;
  ParamRange bias_;
  std::int64_t out_local_ = 0;
};

}  // namespace quatrain
