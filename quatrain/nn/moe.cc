// SPDX-License-Identifier: Apache-2.0
// The weights of choices multiply the activation, not the expert's output: the sum over choices is
// the same, and neither outputs nor gathered inputs need be kept. Rows by expert are gathered again
// where they are read again.
#include "quatrain/nn/moe.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "quatrain/kernels/matmul.h"
#include "quatrain/kernels/pointwise.h"
#include "quatrain/nn/check.h"

namespace quatrain {
namespace {

constexpr std::string_view kLogits = "moe.logits";
constexpr std::string_view kExperts = "moe.experts";
constexpr std::string_view kPre = "moe.pre";
constexpr std::string_view kAct = "moe.act";
constexpr std::string_view kDpre = "moe.dpre";
constexpr std::string_view kDlogits = "moe.dlogits";
constexpr std::string_view kDy = "moe.dy";
constexpr std::string_view kSharedPre = "shared.pre";
constexpr std::string_view kSharedAct = "shared.act";
constexpr std::string_view kSharedDpre = "shared.dpre";

kernels::RouterRule rule_of(const Experts& experts) {
  return {.score = experts.score == RouterScore::kSigmoid ? kernels::ScoreKind::kSigmoid
                                                          : kernels::ScoreKind::kSoftmax,
          .top_k = experts.top_k,
          .normalise = experts.normalise_top_k,
          .scaling = experts.routed_scaling,
          .groups = experts.num_groups,
          .top_k_groups = experts.top_k_groups};
}

kernels::RouterSequences sequences_of(const Pass& pass) {
  return {pass.positions_BT.size(1), pass.sample_ids_B};
}

at::Tensor widened(const at::Tensor& x) { return x.to(wide(x.scalar_type())); }

at::Tensor rows_of_width(const at::Tensor& like, std::int64_t rows, std::int64_t width) {
  return at::empty({rows, width}, like.options());
}

// to += a b.
void add_product(at::Tensor& to, kernels::Operand a, kernels::Operand b) {
  if (wide(to.scalar_type()) == to.scalar_type()) {
    kernels::matmul_add(to, a, b);
  } else {
    to.add_(kernels::matmul(a, b));
  }
}

}  // namespace

Moe::Moe(const ModelSpec& spec, std::int64_t layer, const MoeParams& params,
         const TensorParallel& tp, std::string_view kept)
    : layer_(layer),
      layers_(spec.layers),
      rule_(rule_of(*spec.experts)),
      balance_coef_(spec.experts->aux_loss_coef),
      params_(params),
      tp_(tp),
      dropout_(spec.residual_dropout, Dropout::mlp_site(layer), tp),
      kept_(kept) {
  CHECK(static_cast<std::int64_t>(params.experts.size()) == spec.experts->num_experts,
        "{} experts of {}", params.experts.size(), spec.experts->num_experts);
}

bool Moe::trains(ParamRange ExpertParams::*part) const {
  return std::any_of(params_.experts.begin(), params_.experts.end(),
                     [&](const ExpertParams& e) { return (e.*part).any_trainable(); });
}
bool Moe::needs_x() const {
  return params_.router.any_trainable() || trains(&ExpertParams::up) ||
         params_.shared.up.any_trainable();
}
bool Moe::needs_dy() const {
  return trains(&ExpertParams::down) || params_.shared.down.any_trainable();
}
bool Moe::keeps_whole_dy(const Pass& pass) const {
  return pass.fused_backward || !tp_.options().gather_again;
}

std::vector<at::Tensor> Moe::matrices(ParamRange ExpertParams::*part) const {
  std::vector<at::Tensor> list;
  list.reserve(params_.experts.size());
  for (const ExpertParams& expert : params_.experts) list.push_back((expert.*part).value());
  return list;
}

// Router products are made in the wide type, whatever the model's.
Moe::Choice Moe::route(const at::Tensor& x_ND) const {
  const at::Tensor w_ED = widened(params_.router.value());
  const at::Tensor x = widened(x_ND);
  at::Tensor logits_NE = kernels::matmul(kernels::n(x), kernels::t(w_ED));
  const at::Tensor bias_E = params_.bias.present() ? widened(params_.bias.value()) : at::Tensor();
  const at::Tensor experts_Nk = kernels::choose_experts(logits_NE, bias_E, rule_);
  return {std::move(logits_NE), experts_Nk};
}

void Moe::observe(const Choice& choice, const Pass& pass) const {
  const auto& [logits_NE, experts_Nk] = choice;
  const kernels::RouterStatistics seen =
      kernels::router_statistics(logits_NE, experts_Nk, rule_, sequences_of(pass));
  RouterSums& sums = pass.sums->router;
  sums.balance += balance_coef_ * seen.balance;
  sums.z += seen.z;
  sums.entropy += seen.entropy;
  sums.rows += seen.rows;
  if (!sums.loads_LE.defined()) {
    sums.loads_LE = at::zeros({layers_, logits_NE.size(1)}, at::kDouble);
  }
  sums.loads_LE[layer_].add_(seen.loads_E);
}

Moe::Routed Moe::sorted(const Choice& choice) const {
  const auto& [logits_NE, experts_Nk] = choice;
  Routed routed{kernels::sort_by_expert(experts_Nk, logits_NE.size(1)), {}};
  routed.weights_M = kernels::expert_weights(logits_NE, experts_Nk, rule_)
                         .view({-1})
                         .index_select(0, routed.rows.choice_M);
  return routed;
}

at::Tensor Moe::experts_forward(const at::Tensor& x_ND, const Routed& routed, Stash& stash) const {
  const std::vector<at::Tensor> ups = matrices(&ExpertParams::up);
  const std::int64_t rows = routed.rows.count();
  at::Tensor pre = rows_of_width(x_ND, rows, ups[0].size(0));
  kernels::grouped_matmul_out(pre, kernels::gather_by_expert(x_ND, routed.rows), ups, true,
                              routed.rows.begin);
  at::Tensor act_MF = kernels::swiglu(pre);
  stash.save(std::move(pre), Until::kInput, kPre);
  kernels::scale_rows_(act_MF, routed.weights_M);
  at::Tensor y_MD = rows_of_width(x_ND, rows, x_ND.size(1));
  kernels::grouped_matmul_out(y_MD, act_MF, matrices(&ExpertParams::down), true, routed.rows.begin);
  return kernels::sum_by_row(y_MD, routed.rows);
}

void Moe::add_shared(at::Tensor& y_ND, const at::Tensor& x_ND, Stash& stash) const {
  const at::Tensor up = params_.shared.up.value(), down = params_.shared.down.value();
  at::Tensor pre = kernels::matmul(kernels::n(x_ND), kernels::t(up));
  const at::Tensor act_NS = kernels::swiglu(pre);
  stash.save(std::move(pre), Until::kInput, kSharedPre);
  add_product(y_ND, kernels::n(act_NS), kernels::t(down));
}

at::Tensor Moe::forward(const at::Tensor& x_RD, const at::Tensor& residual_RD, const Pass& pass,
                        Stash& stash, bool keep_x) const {
  const at::Tensor x_ND = tp_.to_whole(x_RD, pass.positions_BT.numel()).wait();
  if (keep_x) stash.save(tp_.options().gather_again ? x_RD : x_ND, Until::kWeight, kept_);
  const Choice choice = route(x_ND);
  if (pass.mode == Mode::kTrain && pass.sums != nullptr) observe(choice, pass);
  const bool weights_trained = trains(&ExpertParams::up) || trains(&ExpertParams::down);
  stash.save(choice.experts_Nk, weights_trained ? Until::kWeight : Until::kInput, kExperts);
  stash.save(choice.logits_NE, Until::kInput, kLogits);
  at::Tensor y_ND = experts_forward(x_ND, sorted(choice), stash);
  if (has_shared()) add_shared(y_ND, x_ND, stash);
  at::Tensor y_RD = tp_.to_rows(y_ND).wait();
  dropout_.apply_(y_RD, pass);
  return y_RD.add_(residual_RD);
}

Moe::ExpertGrads Moe::experts_backward(const at::Tensor& dy_ND, const Routed& routed,
                                       Stash& stash) const {
  const kernels::ExpertRows& rows = routed.rows;
  const at::Tensor pre = stash.take(kPre);
  at::Tensor dact_MF = rows_of_width(pre, rows.count(), pre.size(1) / 2);
  kernels::grouped_matmul_out(dact_MF, kernels::gather_by_expert(dy_ND, rows),
                              matrices(&ExpertParams::down), false, rows.begin);
  kernels::ActivationGrads grads = kernels::swiglu_backward(dact_MF, pre);
  const at::Tensor dweights_M = kernels::row_dots(dact_MF, grads.act);
  dact_MF.reset();
  kernels::scale_rows_(grads.dx, routed.weights_M);
  if (trains(&ExpertParams::down)) {
    kernels::scale_rows_(grads.act, routed.weights_M);
    stash.save(std::move(grads.act), Until::kWeight, kAct);
  }
  if (trains(&ExpertParams::up)) stash.save(grads.dx, Until::kWeight, kDpre);
  at::Tensor dx_MD = rows_of_width(dy_ND, rows.count(), dy_ND.size(1));
  kernels::grouped_matmul_out(dx_MD, grads.dx, matrices(&ExpertParams::up), false, rows.begin);
  return {kernels::sum_by_row(dx_MD, rows),
          dweights_M.index_select(0, rows.row_Nk.view({-1})).view(rows.row_Nk.sizes())};
}

void Moe::add_shared_backward(at::Tensor& dx_ND, const at::Tensor& dy_ND, Stash& stash) const {
  const at::Tensor up = params_.shared.up.value(), down = params_.shared.down.value();
  const at::Tensor dact_NS = kernels::matmul(kernels::n(dy_ND), kernels::n(down));
  kernels::ActivationGrads grads = kernels::swiglu_backward(dact_NS, stash.take(kSharedPre));
  if (params_.shared.down.any_trainable()) {
    stash.save(std::move(grads.act), Until::kWeight, kSharedAct);
  }
  add_product(dx_ND, kernels::n(grads.dx), kernels::n(up));
  if (params_.shared.up.any_trainable()) {
    stash.save(std::move(grads.dx), Until::kWeight, kSharedDpre);
  }
}

// Every rank of tp has its term of the weights' gradient; with their sum all of them make the same
// gradient of the logits.
at::Tensor Moe::router_backward(const at::Tensor& dweights_Nk, const Choice& choice,
                                const Pass& pass, Stash& stash) const {
  if (tp_.sums()) tp_.group().all_reduce(dweights_Nk, ReduceOp::kSum).wait();
  at::Tensor dlogits_NE = kernels::router_backward(
      dweights_Nk, choice.logits_NE, choice.experts_Nk, rule_, sequences_of(pass),
      {.balance = balance_coef_ * pass.loss_scale, .z = pass.router_z_loss * pass.loss_scale});
  if (params_.router.any_trainable()) stash.save(dlogits_NE, Until::kWeight, kDlogits);
  return dlogits_NE;
}

at::Tensor Moe::backward_input(const at::Tensor& dy_RD, const Pass& pass, Stash& stash,
                               const Fill& fill) const {
  const at::Tensor dropped_RD = dropout_.backward(dy_RD, pass);
  Moving whole = tp_.to_whole(dropped_RD, pass.positions_BT.numel());
  if (tp_.cuts_rows()) fill();
  const at::Tensor dy_ND = whole.wait();
  const Choice choice{stash.take(kLogits), stash.at(kExperts)};
  ExpertGrads grads = experts_backward(dy_ND, sorted(choice), stash);
  if (has_shared()) add_shared_backward(grads.dx_ND, dy_ND, stash);
  if (needs_dy()) stash.save(keeps_whole_dy(pass) ? dy_ND : dropped_RD, Until::kWeight, kDy);
  const at::Tensor dlogits_NE = router_backward(grads.dweights_Nk, choice, pass, stash);
  if (!stash.has(kAct) && !stash.has(kDpre)) stash.take(kExperts);
  Moving sum = tp_.to_rows(grads.dx_ND);
  if (tp_.sums()) fill();
  at::Tensor dx_RD = sum.wait();
  const at::Tensor w_ED = widened(params_.router.value());
  const at::Tensor own_RE = tp_.own_rows(dlogits_NE);
  return dx_RD.add_(kernels::matmul(kernels::n(own_RE), kernels::n(w_ED)));
}

void Moe::experts_outer(ParamRange ExpertParams::*part, const at::Tensor& dy_MO,
                        const at::Tensor& x_MI, const kernels::ExpertRows& rows,
                        const Pass& pass) const {
  for (std::size_t e = 0; e < params_.experts.size(); ++e) {
    const std::int64_t count = rows.begin[e + 1] - rows.begin[e];
    const ParamRange& range = params_.experts[e].*part;
    if (count == 0 || !range.any_trainable()) continue;
    pass.grads->outer(range, dy_MO.narrow(0, rows.begin[e], count),
                      x_MI.narrow(0, rows.begin[e], count));
  }
}

void Moe::down_weights(const Pass& pass, Stash& stash) const {
  at::Tensor dy_ND = stash.take(kDy);
  if (!keeps_whole_dy(pass)) dy_ND = tp_.to_whole(dy_ND, pass.positions_BT.numel()).wait();
  if (stash.has(kAct)) {
    const auto rows = kernels::sort_by_expert(stash.at(kExperts),
                                              static_cast<std::int64_t>(params_.experts.size()));
    experts_outer(&ExpertParams::down, kernels::gather_by_expert(dy_ND, rows), stash.take(kAct),
                  rows, pass);
  }
  if (stash.has(kSharedAct)) pass.grads->outer(params_.shared.down, dy_ND, stash.take(kSharedAct));
}

void Moe::up_weights(const Pass& pass, Stash& stash) const {
  at::Tensor x_ND = stash.take(kept_);
  if (tp_.options().gather_again) x_ND = tp_.to_whole(x_ND, pass.positions_BT.numel()).wait();
  if (stash.has(kDlogits)) pass.grads->outer(params_.router, stash.take(kDlogits), widened(x_ND));
  if (stash.has(kDpre)) {
    const auto rows = kernels::sort_by_expert(stash.at(kExperts),
                                              static_cast<std::int64_t>(params_.experts.size()));
    experts_outer(&ExpertParams::up, stash.take(kDpre), kernels::gather_by_expert(x_ND, rows), rows,
                  pass);
  }
  if (stash.has(kSharedDpre)) pass.grads->outer(params_.shared.up, stash.take(kSharedDpre), x_ND);
}

bool Moe::weight_piece(const Pass& pass, Stash& stash) const {
  const bool up_waits = stash.has(kDlogits) || stash.has(kDpre) || stash.has(kSharedDpre);
  if (stash.has(kDy)) {
    down_weights(pass, stash);
  } else if (up_waits && stash.has(kept_)) {
    up_weights(pass, stash);
  } else {
    return false;
  }
  if (stash.has(kExperts) && !stash.has(kAct) && !stash.has(kDpre)) stash.take(kExperts);
  return true;
}

}  // namespace quatrain
