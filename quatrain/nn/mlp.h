// SPDX-License-Identifier: Apache-2.0
// The feed-forward part of a block: GELU (Hendrycks & Gimpel, arXiv:1606.08415) or SwiGLU (Shazeer,
// arXiv:2002.05202), gate and up as one GEMM.
// Shapes: N rows of the micro-batch, R of the residual stream, D hidden, F ffn (this rank's);
// pre-activation [N, F], or [N, 2F] (gate first) for SwiGLU.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "quatrain/nn/dropout.h"
#include "quatrain/nn/layer.h"
#include "quatrain/nn/parallel_linear.h"
#include "quatrain/spec/model_spec.h"

namespace quatrain {

struct MlpParams {
  ParamRange up, up_bias;  // gate and up for SwiGLU
  ParamRange down, down_bias;
};

class Mlp {
 public:
  // `kept`: the stash's row of the norm's output.
  Mlp(const ModelSpec& spec, std::int64_t layer, const MlpParams& params, const TensorParallel& tp,
      std::string_view kept);

  // residual + dropout(down(activation(up(x)))); x: the norm's output, kept when `keep_x`.
  at::Tensor forward(const at::Tensor& x_RD, const at::Tensor& residual_RD, const Pass& pass,
                     Stash& stash, bool keep_x) const;
  // dx alone: the residual's gradient is dy itself.
  at::Tensor backward_input(const at::Tensor& dy_RD, const Pass& pass, Stash& stash,
                            const Fill& fill) const;
  // += through pass.grads. Runs the next product's weight half that the stash holds all for; false
  // when there is none.
  bool weight_piece(const Pass& pass, Stash& stash) const;
  bool needs_x() const { return up_.needs_x(); }

 private:
  MlpKind kind_;
  bool gelu_tanh_;
  ColumnLinear up_;
  RowLinear down_;
  Dropout dropout_;
};

}  // namespace quatrain
