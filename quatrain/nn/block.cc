// SPDX-License-Identifier: Apache-2.0
// The order of a block's work. h is made in the attention output's buffer by the second norm's
// pass; the residual's gradient is added in the norms' backward passes.
#include "quatrain/nn/block.h"

#include <utility>

namespace quatrain {
namespace {

constexpr Norm::Rows kNorm1{.x = "norm1.x",
                            .mean = "norm1.mean",
                            .rstd = "norm1.rstd",
                            .y = "norm1.y",
                            .dgain = "norm1.dgain",
                            .dbias = "norm1.dbias"};
constexpr Norm::Rows kNorm2{.x = "norm2.x",
                            .mean = "norm2.mean",
                            .rstd = "norm2.rstd",
                            .y = "norm2.y",
                            .dgain = "norm2.dgain",
                            .dbias = "norm2.dbias"};

std::unique_ptr<SelfAttention> make_attention(const ModelSpec& spec, std::int64_t layer,
                                              const BlockParams& params,
                                              const BlockContext& context) {
  if (const auto* latent = std::get_if<LatentAttentionParams>(&params.attention)) {
    return std::make_unique<LatentSelfAttention>(spec, layer, *latent, context.rotary,
                                                 context.ranks, kNorm1.y);
  }
  return std::make_unique<Attention>(spec, layer, std::get<AttentionParams>(params.attention),
                                     context.rotary, context.ranks, kNorm1.y);
}

std::unique_ptr<FeedForward> make_mlp(const ModelSpec& spec, std::int64_t layer,
                                      const BlockParams& params, const BlockContext& context) {
  if (const auto* moe = std::get_if<MoeParams>(&params.mlp)) {
    return std::make_unique<Moe>(spec, layer, *moe, context.ranks, context.router, kNorm2.y);
  }
  return std::make_unique<Mlp>(spec, layer, std::get<MlpParams>(params.mlp), context.ranks.tp,
                               kNorm2.y);
}

}  // namespace

std::int64_t gain_leaf(const Pass& pass, const TensorParallel& tp) {
  return tp.cuts_rows() ? tp.own(pass.positions_BT.numel()).size() : pass.positions_BT.size(1);
}

Block::Block(const ModelSpec& spec, std::int64_t layer, std::vector<ParamUnit*> units,
             const BlockParams& params, const BlockContext& context)
    : units_(std::move(units)),
      tp_(context.ranks.tp),
      restore_norms_(context.restore_norms),
      norm1_(params.norm1, params.norm1_bias, spec.norm_eps, kNorm1),
      attention_(make_attention(spec, layer, params, context)),
      norm2_(params.norm2, params.norm2_bias, spec.norm_eps, kNorm2),
      mlp_(make_mlp(spec, layer, params, context)) {}

at::Tensor Block::forward(const at::Tensor& x_RD, const Pass& pass, Stash& stash) {
  Stash nothing = Stash::discarding();
  Stash& kept = pass.mode == Mode::kTrain ? stash : nothing;
  const bool keep = !restore_norms_;
  at::Tensor x = x_RD;
  at::Tensor normed_RD = norm1_.forward(x, {}, kept);
  at::Tensor h_RD = attention_->forward(normed_RD, pass, kept, keep && attention_->needs_x());
  normed_RD = norm2_.forward(h_RD, x, kept);
  return mlp_->forward(normed_RD, h_RD, pass, kept, keep && mlp_->needs_x());
}

at::Tensor Block::backward_input(const at::Tensor& dy_RD, const Pass& pass, Stash& stash,
                                 Filler& filler) {
  const std::int64_t leaf = gain_leaf(pass, tp_);
  const Fill fill = [&] { filler.fill([&] { return weight_piece(pass, stash); }); };
  at::Tensor dnormed_RD = mlp_->backward_input(dy_RD, pass, stash, fill);
  if (restore_norms_ && mlp_->needs_x()) norm2_.restore_y(stash);
  const at::Tensor dh_RD = norm2_.backward_input(dnormed_RD, dy_RD, leaf, stash);
  dnormed_RD.reset();
  dnormed_RD = attention_->backward_input(dh_RD, pass, stash, fill);
  if (restore_norms_ && attention_->needs_x()) norm1_.restore_y(stash);
  return norm1_.backward_input(dnormed_RD, dh_RD, leaf, stash);
}

bool Block::weight_piece(const Pass& pass, Stash& stash) const {
  return mlp_->weight_piece(pass, stash) || attention_->weight_piece(pass, stash);
}

void Block::backward_weight(const Pass& pass, Stash& stash) {
  while (weight_piece(pass, stash)) {
  }
  norm2_.backward_weight(*pass.grads, stash);
  norm1_.backward_weight(*pass.grads, stash);
  stash.clear();
}

}  // namespace quatrain
