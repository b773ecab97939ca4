// SPDX-License-Identifier: Apache-2.0
// The feed-forward part of a block: GELU (Hendrycks & Gimpel, arXiv:1606.08415) or SwiGLU (Shazeer,
// arXiv:2002.05202), gate and up as one GEMM.
// Shapes: N rows of the micro-batch, R of the residual stream, D hidden, F ffn (this rank's);
// pre-activation [N, F], or [N, 2F] (gate first) for SwiGLU.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "quatrain/nn/block_parts.h"
#include "quatrain/nn/dropout.h"
#include "quatrain/spec/model_spec.h"

namespace quatrain {

struct MlpParams {
  ParamRange up, up_bias;  // gate and up for SwiGLU
  ParamRange down, down_bias;
};

class Mlp final : public FeedForward {
 public:
  // `kept`: the stash's row of the norm's output.
  Mlp(const ModelSpec& spec, std::int64_t layer, const MlpParams& params, const TensorParallel& tp,
      std::string_view kept);

  at::Tensor forward(const at::Tensor& x_RD, const at::Tensor& residual_RD, const Pass& pass,
                     Stash& stash, bool keep_x) const override;
  at::Tensor backward_input(const at::Tensor& dy_RD, const Pass& pass, Stash& stash,
                            const Fill& fill) const override;
  bool weight_piece(const Pass& pass, Stash& stash) const override;
  bool needs_x() const override { return up_.needs_x(); }

 private:
  MlpKind kind_;
  bool gelu_tanh_;
  ColumnLinear up_;
  RowLinear down_;
  Dropout dropout_;
};

}  // namespace quatrain
