// SPDX-License-Identifier: Apache-2.0
// The norms of a block: one pass forward, one pass backward, both in kernels/.
#include "quatrain/nn/norm.h"

#include <utility>

#include "quatrain/kernels/pointwise.h"

namespace quatrain {

Norm::Norm(const ParamRange& gain, const ParamRange& bias, double eps, const Rows& rows)
    : gain_(gain), bias_(bias), eps_(eps), rows_(rows) {}

at::Tensor Norm::forward(at::Tensor& x_ND, const at::Tensor& residual_ND, Stash& stash) const {
  kernels::NormOut out =
      kernels::norm_forward(x_ND, residual_ND, gain_.value(), bias_value(), eps_, bias_.present());
  stash.save(x_ND, Until::kInput, rows_.x);
  stash.save(std::move(out.rstd), Until::kInput, rows_.rstd);
  if (out.mean.defined()) stash.save(std::move(out.mean), Until::kInput, rows_.mean);
  return std::move(out.y);
}

void Norm::restore_y(Stash& stash) const {
  const at::Tensor mean_N = bias_.present() ? stash.at(rows_.mean) : at::Tensor();
  stash.save(kernels::norm_apply(stash.at(rows_.x), gain_.value(), bias_value(), mean_N,
                                 stash.at(rows_.rstd)),
             Until::kWeight, rows_.y);
}

at::Tensor Norm::backward_input(const at::Tensor& dy_ND, const at::Tensor& residual_grad_ND,
                                std::int64_t leaf, Stash& stash) const {
  const at::Tensor x_ND = stash.take(rows_.x);
  const at::Tensor rstd_N = stash.take(rows_.rstd);
  const at::Tensor mean_N = bias_.present() ? stash.take(rows_.mean) : at::Tensor();
  const bool need_gain = gain_.any_trainable() || bias_.any_trainable();
  kernels::NormGrads grads =
      kernels::norm_backward(dy_ND, x_ND, mean_N, rstd_N, gain_.value(), bias_.present(),
                             residual_grad_ND, leaf, need_gain);
  if (gain_.any_trainable()) stash.save(std::move(grads.dgain_LD), Until::kWeight, rows_.dgain);
  if (bias_.any_trainable()) stash.save(std::move(grads.dbias_LD), Until::kWeight, rows_.dbias);
  return std::move(grads.dx);
}

void Norm::backward_weight(GradSink& grads, Stash& stash) const {
  if (gain_.any_trainable()) grads.rows(gain_, stash.take(rows_.dgain));
  if (bias_.any_trainable()) grads.rows(bias_, stash.take(rows_.dbias));
}

}  // namespace quatrain
