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

at::Tensor rows_of(const at::Tensor& x_BTD) { return x_BTD.view({-1, x_BTD.size(-1)}); }

at::Tensor take_if(bool needed, Stash& stash, std::string_view what) {
  return needed ? stash.take(what) : at::Tensor();
}

}  // namespace

Block::Block(const ModelSpec& spec, std::int64_t layer, ParamUnit& unit, const BlockParams& params,
             RotaryTables rotary, bool restore_norms)
    : unit_(unit),
      restore_norms_(restore_norms),
      norm1_(params.norm1, params.norm1_bias, spec.norm_eps, kNorm1),
      attention_(spec, layer, params.attention, std::move(rotary)),
      norm2_(params.norm2, params.norm2_bias, spec.norm_eps, kNorm2),
      mlp_(spec, layer, params.mlp) {}

at::Tensor Block::forward(const at::Tensor& x_BTD, const Pass& pass, Stash& stash) {
  Stash nothing = Stash::discarding();
  Stash& kept = pass.mode == Mode::kTrain ? stash : nothing;
  const bool keep_y = !restore_norms_;
  at::Tensor x_ND = rows_of(x_BTD);
  at::Tensor normed_ND = norm1_.forward(x_ND, {}, kept, keep_y && attention_.needs_x());
  at::Tensor h_ND = attention_.forward(normed_ND, pass, kept);
  normed_ND = norm2_.forward(h_ND, x_ND, kept, keep_y && mlp_.needs_x());
  return mlp_.forward(normed_ND, h_ND, pass, kept).view(x_BTD.sizes());
}

at::Tensor Block::backward_input(const at::Tensor& dy_BTD, const Pass& pass, Stash& stash,
                                 Filler& filler) {
  const std::int64_t leaf = dy_BTD.size(1);
  const at::Tensor dy_ND = rows_of(dy_BTD);
  at::Tensor dnormed_ND = mlp_.backward_input(dy_ND, pass, stash, filler);
  if (restore_norms_ && mlp_.needs_x()) norm2_.restore_y(stash);
  const at::Tensor dh_ND = norm2_.backward_input(dnormed_ND, dy_ND, leaf, stash);
  dnormed_ND.reset();
  dnormed_ND = attention_.backward_input(dh_ND, pass, stash, filler);
  if (restore_norms_ && attention_.needs_x()) norm1_.restore_y(stash);
  return norm1_.backward_input(dnormed_ND, dh_ND, leaf, stash).view(dy_BTD.sizes());
}

void Block::backward_weight(const Pass& pass, Stash& stash) {
  mlp_.backward_weight(take_if(mlp_.needs_x(), stash, kNorm2.y), pass, stash);
  norm2_.backward_weight(*pass.grads, stash);
  attention_.backward_weight(take_if(attention_.needs_x(), stash, kNorm1.y), pass, stash);
  norm1_.backward_weight(*pass.grads, stash);
  stash.clear();
}

}  // namespace quatrain
