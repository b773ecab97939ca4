// SPDX-License-Identifier: Apache-2.0
// The feed-forward part of a block: GELU (Hendrycks & Gimpel, arXiv:1606.08415) or SwiGLU (Shazeer,
// arXiv:2002.05202), gate and up as one GEMM.
// Shapes: N rows, D hidden, F ffn; pre-activation [N, F], or [N, 2F] (gate first) for SwiGLU.
#pragma once
#include <ATen/core/Tensor.h>

#include "quatrain/nn/dropout.h"
#include "quatrain/nn/layer.h"
#include "quatrain/nn/linear.h"
#include "quatrain/spec/model_spec.h"

namespace quatrain {

struct MlpParams {
  ParamRange up, up_bias;  // gate and up for SwiGLU
  ParamRange down, down_bias;
};

class Mlp {
 public:
  Mlp(const ModelSpec& spec, std::int64_t layer, const MlpParams& params);

  // residual + dropout(down(activation(up(x)))); x: the norm's output.
  at::Tensor forward(const at::Tensor& x_ND, const at::Tensor& residual_ND, const Pass& pass,
                     Stash& stash) const;
  // dx alone: the residual's gradient is dy itself.
  at::Tensor backward_input(const at::Tensor& dy_ND, const Pass& pass, Stash& stash,
                            Filler& filler) const;
  // += through pass.grads. x as in forward; may be undefined unless needs_x().
  void backward_weight(const at::Tensor& x_ND, const Pass& pass, Stash& stash) const;
  bool needs_x() const { return up_.needs_x(); }

 private:
  MlpKind kind_;
  bool gelu_tanh_;
  Linear up_;
  Linear down_;
  Dropout dropout_;
};

}  // namespace quatrain
