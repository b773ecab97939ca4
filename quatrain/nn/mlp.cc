// SPDX-License-Identifier: Apache-2.0
// Feed-forward parts. The activation is not kept: the input half makes it again in the pass that
// makes its gradient.
#include "quatrain/nn/mlp.h"

#include <utility>

#include "quatrain/kernels/pointwise.h"

namespace quatrain {
namespace {

constexpr std::string_view kMlpPre = "mlp.pre";
constexpr std::string_view kMlpAct = "mlp.act";
constexpr std::string_view kMlpDpre = "mlp.dpre";
constexpr std::string_view kMlpDy = "mlp.dy";

}  // namespace

Mlp::Mlp(const ModelSpec& spec, std::int64_t layer, const MlpParams& params,
         const TensorParallel& tp, std::string_view kept)
    : kind_(spec.mlp),
      gelu_tanh_(spec.gelu_tanh),
      up_(tp, params.up, params.up_bias, kept),
      down_(tp, params.down, params.down_bias, kMlpDy),
      dropout_(spec.residual_dropout, Dropout::mlp_site(layer), tp) {}

at::Tensor Mlp::forward(const at::Tensor& x_RD, const at::Tensor& residual_RD, const Pass& pass,
                        Stash& stash, bool keep_x) const {
  at::Tensor pre = up_.forward(x_RD, pass, stash, keep_x);
  if (pass.mode == Mode::kTrain) stash.save(pre, Until::kInput, kMlpPre);
  if (pass.rerun) return {};
  const at::Tensor act_NF =
      kind_ == MlpKind::kSwiGlu ? kernels::swiglu(pre) : kernels::gelu(pre, gelu_tanh_);
  pre.reset();
  if (!dropout_.active(pass)) return down_.forward_onto(residual_RD, act_NF);
  at::Tensor y_RD = down_.forward(act_NF);
  dropout_.apply_(y_RD, pass);
  return y_RD.add_(residual_RD);
}

at::Tensor Mlp::backward_input(const at::Tensor& dy_RD, const Pass& pass, Stash& stash,
                               const Fill& fill) const {
  at::Tensor dact_NF = down_.backward_input(dropout_.backward(dy_RD, pass), pass, stash, fill);
  const at::Tensor pre = stash.take(kMlpPre);
  kernels::ActivationGrads grads = kind_ == MlpKind::kSwiGlu
                                       ? kernels::swiglu_backward(dact_NF, pre)
                                       : kernels::gelu_backward(dact_NF, pre, gelu_tanh_);
  dact_NF.reset();
  if (down_.needs_x()) stash.save(std::move(grads.act), Until::kWeight, kMlpAct);
  if (up_.needs_dy()) stash.save(grads.dx, Until::kWeight, kMlpDpre);
  return up_.backward_input(grads.dx, fill);
}

bool Mlp::weight_piece(const Pass& pass, Stash& stash) const {
  if (down_.has_dy(stash) && (!down_.needs_x() || stash.has(kMlpAct))) {
    const at::Tensor act_NF = down_.needs_x() ? stash.take(kMlpAct) : at::Tensor();
    down_.backward_weight(act_NF, pass, stash);
    return true;
  }
  if (stash.has(kMlpDpre) && up_.has_x(stash)) {
    up_.backward_weight(stash.take(kMlpDpre), pass, stash);
    return true;
  }
  return false;
}

}  // namespace quatrain
