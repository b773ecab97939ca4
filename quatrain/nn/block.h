// SPDX-License-Identifier: Apache-2.0
// One pre-norm decoder block: h = x + attention(norm1(x)); y = h + mlp(norm2(h)).
// Shapes: R rows of the residual stream, D hidden.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <variant>
#include <vector>

#include "quatrain/nn/attention.h"
#include "quatrain/nn/latent_attention.h"
#include "quatrain/nn/layer.h"
#include "quatrain/nn/mlp.h"
#include "quatrain/nn/moe.h"
#include "quatrain/nn/norm.h"

namespace quatrain {

struct BlockParams {
  ParamRange norm1, norm1_bias;
  std::variant<AttentionParams, LatentAttentionParams> attention;
  ParamRange norm2, norm2_bias;
  std::variant<MlpParams, MoeParams> mlp;
};

// What the blocks of a model share.
struct BlockContext {
  ModelRanks ranks;
  RotaryTables rotary;
  RouterTraining router = {};
  bool restore_norms = false;  // selective recomputation: norm outputs are made again, not kept
};

class Block final : public Layer {
 public:
  // `units`: the block's, its experts' behind it where it has any.
  Block(const ModelSpec& spec, std::int64_t layer, std::vector<ParamUnit*> units,
        const BlockParams& params, const BlockContext& context);

  at::Tensor forward(const at::Tensor& x_RD, const Pass& pass, Stash& stash) override;
  at::Tensor backward_input(const at::Tensor& dy_RD, const Pass& pass, Stash& stash,
                            Filler& filler) override;
  void backward_weight(const Pass& pass, Stash& stash) override;
  std::vector<ParamUnit*> units() override { return units_; }

 private:
  bool weight_piece(const Pass& pass, Stash& stash) const;

  std::vector<ParamUnit*> units_;
  const TensorParallel& tp_;
  bool restore_norms_;
  Norm norm1_;
  std::unique_ptr<SelfAttention> attention_;
  Norm norm2_;
  std::unique_ptr<FeedForward> mlp_;
};

}  // namespace quatrain
