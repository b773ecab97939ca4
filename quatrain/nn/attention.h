// SPDX-License-Identifier: Apache-2.0
// Causal self-attention with grouped queries (Ainslie et al., arXiv:2305.13245), rotary positions,
// optional RMSNorm of each head's q and k (Qwen3), sliding window, packed documents, KV cache.
// Shapes: N = B T rows, R of the residual stream, D hidden; this rank's H query heads, K kv heads,
// d head dim, E = H d.
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

struct AttentionParams {
  ParamRange qkv, qkv_bias;
  ParamRange q_norm, k_norm;  // absent without qk-norm
  ParamRange out, out_bias;
};

// The projections and what lies between them.
class Attention final : public SelfAttention {
 public:
  // `kept`: the stash's row of the norm's output.
  Attention(const ModelSpec& spec, std::int64_t layer, const AttentionParams& params,
            RotaryTables rotary, const ModelRanks& ranks, std::string_view kept);

  at::Tensor forward(const at::Tensor& x_RD, const Pass& pass, Stash& stash,
                     bool keep_x) const override;
  at::Tensor backward_input(const at::Tensor& dy_RD, const Pass& pass, Stash& stash,
                            const Fill& fill) const override;
  bool weight_piece(const Pass& pass, Stash& stash) const override;
  bool needs_x() const override { return qkv_.needs_x(); }

 private:
  using Heads = QkvHeads;  // views
  ContextMask mask(const Pass& pass) const;
  ContextParallel::Attended attend(const Heads& heads, const Pass& pass) const;
  Heads split(const at::Tensor& qkv, const Pass& pass) const;
  Heads normalise(const Heads& raw, Stash& stash) const;
  void normalise_backward(const Heads& raw, Heads& grads, std::int64_t seq, Stash& stash) const;
  at::Tensor gradient_of_qkv(const at::Tensor& dout_NE, const at::Tensor& out_NE, const Pass& pass,
                             Stash& stash) const;
  void rotate(const at::Tensor& qkv, Heads& heads, const Pass& pass, bool inverse) const;

  std::int64_t layer_;
  std::int64_t head_dim_;
  std::int64_t heads_local_;
  std::int64_t kv_heads_local_;
  std::int64_t window_;
  double norm_eps_;
  ParamRange q_norm_;
  ParamRange k_norm_;
  RotaryTables rotary_;
  const ContextParallel& context_;
  ColumnLinear qkv_;
  RowLinear out_;
  Dropout dropout_;
};

}  // namespace quatrain
