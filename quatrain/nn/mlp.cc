// SPDX-License-Identifier: Apache-2.0
// Feed-forward parts. The activation is not kept: the input half makes it again in the pass that
// makes its gradient.
#include "quatrain/nn/mlp.h"

#include <utility>

#include "quatrain/kernels/pointwise.h"

namespace quatrain {
namespace {

constexpr std::string_view kPre = "mlp.pre";
constexpr std::string_view kAct = "mlp.act";
constexpr std::string_view kDpre = "mlp.dpre";
constexpr std::string_view kDy = "mlp.dy";

}  // namespace

Mlp::Mlp(const ModelSpec& spec, std::int64_t layer, const MlpParams& params)
    : kind_(spec.mlp),
      gelu_tanh_(spec.gelu_tanh),
      up_(params.up, params.up_bias),
      down_(params.down, params.down_bias),
      dropout_(spec.residual_dropout, Dropout::mlp_site(layer)) {}

at::Tensor Mlp::forward(const at::Tensor& x_ND, const at::Tensor& residual_ND, const Pass& pass,
                        Stash& stash) const {
  at::Tensor pre = up_.forward(x_ND);
  const at::Tensor act_NF =
      kind_ == MlpKind::kSwiGlu ? kernels::swiglu(pre) : kernels::gelu(pre, gelu_tanh_);
  if (pass.mode == Mode::kTrain) stash.save(pre, Until::kInput, kPre);
  pre.reset();
  if (!dropout_.active(pass)) return down_.forward_onto(residual_ND, act_NF);
  at::Tensor y_ND = down_.forward(act_NF);
  dropout_.apply_(y_ND, pass);
  return y_ND.add_(residual_ND);
}

at::Tensor Mlp::backward_input(const at::Tensor& dy_ND, const Pass& pass, Stash& stash,
                               Filler&) const {
  at::Tensor dy = dropout_.backward(dy_ND, pass);
  at::Tensor dact_NF = down_.backward_input(dy);
  if (down_.needs_dy()) stash.save(std::move(dy), Until::kWeight, kDy);
  const at::Tensor pre = stash.take(kPre);
  kernels::ActivationGrads grads = kind_ == MlpKind::kSwiGlu
                                       ? kernels::swiglu_backward(dact_NF, pre)
                                       : kernels::gelu_backward(dact_NF, pre, gelu_tanh_);
  dact_NF.reset();
  if (down_.needs_x()) stash.save(std::move(grads.act), Until::kWeight, kAct);
  if (up_.needs_dy()) stash.save(grads.dx, Until::kWeight, kDpre);
  return up_.backward_input(grads.dx);
}

void Mlp::backward_weight(const at::Tensor& x_ND, const Pass& pass, Stash& stash) const {
  if (down_.needs_dy()) {
    const at::Tensor act_NF = down_.needs_x() ? stash.take(kAct) : at::Tensor();
    down_.backward_weight(*pass.grads, stash.take(kDy), act_NF);
  }
  if (up_.needs_dy()) up_.backward_weight(*pass.grads, stash.take(kDpre), x_ND);
}

}  // namespace quatrain
