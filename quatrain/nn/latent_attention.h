// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): queries, and keys with
// values, are compressed before they are cut into heads; one rotated key of r dims is shared by all
// heads. The compressions read the residual stream's own rows; a decoder keeps the latent alone.
// Shapes: N = B T rows, R of the residual stream, D hidden; this rank's H heads, each with n dims
// without positions, r with, v of values; q = n + r; P rank of keys and values, Q of queries.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "quatrain/nn/block_parts.h"
#include "quatrain/nn/context_parallel.h"
#include "quatrain/nn/dropout.h"
#include "quatrain/nn/rotary.h"
#include "quatrain/spec/model_spec.h"

namespace quatrain {

struct LatentAttentionParams {
  ParamRange q_a, q_norm;  // absent where queries are not compressed
  ParamRange q;            // of the latent, or of the residual stream
  ParamRange kv_a, kv_norm, kv_b;
  ParamRange out, out_bias;
};

class LatentSelfAttention final : public SelfAttention {
 public:
  // `kept`: the stash's row of the norm's output.
  LatentSelfAttention(const ModelSpec& spec, std::int64_t layer,
                      const LatentAttentionParams& params, RotaryTables rotary,
                      const ModelRanks& ranks, std::string_view kept);

  at::Tensor forward(const at::Tensor& x_RD, const Pass& pass, Stash& stash,
                     bool keep_x) const override;
  at::Tensor backward_input(const at::Tensor& dy_RD, const Pass& pass, Stash& stash,
                            const Fill& fill) const override;
  bool weight_piece(const Pass& pass, Stash& stash) const override;
  bool needs_x() const override;

 private:
  bool compressed() const { return params_.q_a.present(); }
  at::Tensor queries(const at::Tensor& x_RD, const Pass& pass, Stash& stash, bool keep_x) const;
  // Normed latent and rotated key of all rows, [N, P + r].
  at::Tensor latents(const at::Tensor& x_RD, const Pass& pass, Stash& stash) const;
  at::Tensor keys(const at::Tensor& kv_BSHe, const at::Tensor& rotated_BSr) const;
  void rotate(const at::Tensor& x_NHd, std::int64_t begin, const Pass& pass, bool inverse) const;

  ContextMask mask(const Pass& pass) const;
  ContextParallel::Attended attend(const QkvHeads& x, const Pass& pass) const;

  struct HeadGrads {
    at::Tensor dq, dkv, drotated;  // [N, H q], [N, H (n + v)], [N, r] (a term)
  };
  HeadGrads heads_backward(const at::Tensor& dout_NE, const Pass& pass, Stash& stash) const;
  at::Tensor latents_backward(const HeadGrads& grads, const Pass& pass, Stash& stash,
                              const Fill& fill) const;  // [R, P + r]
  at::Tensor queries_backward(const at::Tensor& dq, const Pass& pass, Stash& stash,
                              const Fill& fill) const;  // of the residual stream
  void norm_weights(const Pass& pass, Stash& stash) const;
  void kv_weights(const Pass& pass, Stash& stash) const;
  void input_weights(const Pass& pass, Stash& stash) const;
  bool inputs_wait(const Stash& stash) const;

  std::int64_t layer_;
  LatentAttention sizes_;
  std::int64_t heads_local_;
  double scale_;
  RotaryTables rotary_;
  LatentAttentionParams params_;
  const TensorParallel& tp_;
  const ContextParallel& context_;
  ColumnLinear q_;
  RowLinear out_;
  Dropout dropout_;
  std::string_view kept_;
};

}  // namespace quatrain
