// SPDX-License-Identifier: Apache-2.0
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
constexpr std::string_view kSequenceCounts =
    "moe.sequences";  // choices, where ranks share sequences
constexpr std::string_view kDlogits = "moe.dlogits";
constexpr std::string_view kMoeDy = "moe.dy";
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

at::Tensor widened(const at::Tensor& x) { return x.to(wide(x.scalar_type())); }

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
         const ModelRanks& ranks, const RouterTraining& training, std::string_view kept)
    : layer_(layer),
      layers_(spec.layers),
      rule_(rule_of(*spec.experts)),
      balance_coef_(spec.experts->aux_loss_coef),
      capacity_(training.capacity),
      balance_over_(training.balance),
      params_(params),
      experts_(spec.experts->num_experts, params.experts, ranks.ep),
      tp_(ranks.tp),
      context_(ranks.cp),
      dropout_(spec.residual_dropout, Dropout::mlp_site(layer), ranks.tp),
      jitter_(training.jitter, layer, ranks.tp),
      kept_(kept) {}

bool Moe::needs_x() const {
  return params_.router.any_trainable() || experts_.reads_x() || params_.shared.up.any_trainable();
}
bool Moe::needs_dy() const { return experts_.reads_dy() || params_.shared.down.any_trainable(); }
bool Moe::keeps_whole_dy(const Pass& pass) const {
  return pass.fused_backward || !tp_.options().gather_again;
}

kernels::RouterSequences Moe::sequences(const Pass& pass, const at::Tensor& counts_BE) const {
  return {.seq = pass.positions_BT.size(1),
          .samples_B = pass.sample_ids_B,
          .over = balance_over_,
          .loads_E = pass.router_loads_LE.defined() ? pass.router_loads_LE[layer_] : at::Tensor(),
          .whole = pass.whole_seq(),
          .counts_BE = counts_BE};
}

at::Tensor Moe::read_by_router(const at::Tensor& x_ND, const Pass& pass) const {
  return jitter_.read(widened(x_ND), pass);
}

// Router products are made in the wide type, whatever the model's.
Moe::Choice Moe::route(const at::Tensor& x_ND, const Pass& pass) const {
  const at::Tensor w_ED = widened(params_.router.value());
  const at::Tensor x = read_by_router(x_ND, pass);
  at::Tensor logits_NE = kernels::matmul(kernels::n(x), kernels::t(w_ED));
  const at::Tensor bias_E = params_.bias.present() ? widened(params_.bias.value()) : at::Tensor();
  const at::Tensor experts_Nk = kernels::choose_experts(logits_NE, bias_E, rule_);
  if (pass.mode != Mode::kTrain || !capacity_.limited())
    return {std::move(logits_NE), experts_Nk, experts_Nk};
  const at::Tensor weights_Nk = kernels::expert_weights(logits_NE, experts_Nk, rule_);
  at::Tensor sent_Nk = kernels::limit_experts(experts_Nk, weights_Nk, logits_NE.size(1), capacity_);
  return {std::move(logits_NE), experts_Nk, std::move(sent_Nk)};
}

at::Tensor Moe::counts_of_sequences(const Choice& choice, const Pass& pass) const {
  if (!counts_whole_sequences()) return {};
  const at::Tensor counts_BE = kernels::choices_of_sequences(
      choice.experts_Nk, choice.logits_NE.size(1), sequences(pass, {}));
  context_.group().all_reduce(counts_BE, ReduceOp::kSum).wait();
  return counts_BE;
}

void Moe::observe(const Choice& choice, const Pass& pass, const at::Tensor& counts_BE) const {
  const auto& [logits_NE, experts_Nk, sent_Nk] = choice;
  const kernels::RouterStatistics seen =
      kernels::router_statistics(logits_NE, experts_Nk, rule_, sequences(pass, counts_BE));
  RouterSums& sums = pass.sums->router;
  sums.balance += balance_coef_ * seen.balance;
  sums.z += seen.z;
  sums.entropy += seen.entropy;
  sums.rows += seen.rows;
  if (capacity_.limited()) {
    const at::Tensor there_B1 = pass.sample_ids_B.ge(0).unsqueeze(1);
    const at::Tensor dropped = sent_Nk.lt(0).view({there_B1.size(0), -1}).logical_and_(there_B1);
    sums.dropped += dropped.sum().item<std::int64_t>();
  }
  if (!sums.loads_LE.defined()) {
    sums.loads_LE = at::zeros({layers_, logits_NE.size(1)}, at::kDouble);
  }
  sums.loads_LE[layer_].add_(seen.loads_E);
}

Choices Moe::weighted(const Choice& choice) const {
  return {choice.sent_Nk, kernels::expert_weights(choice.logits_NE, choice.experts_Nk, rule_)};
}

// Again, from what the forward kept of it.
Moe::Choice Moe::stashed(Stash& stash) const {
  const at::Tensor sent_Nk = experts_.reads_choices() ? stash.at(kExperts) : stash.take(kExperts);
  const at::Tensor experts_Nk =
      capacity_.limited() ? sent_Nk.where(sent_Nk.ge(0), sent_Nk.bitwise_not()) : sent_Nk;
  return {stash.take(kLogits), experts_Nk, sent_Nk};
}

// Nothing in a rerun.
at::Tensor Moe::shared_activation(const at::Tensor& x_ND, const Pass& pass, Stash& stash) const {
  at::Tensor pre = kernels::matmul(kernels::n(x_ND), kernels::t(params_.shared.up.value()));
  at::Tensor act_NS = pass.rerun ? at::Tensor() : kernels::swiglu(pre);
  stash.save(std::move(pre), Until::kInput, kSharedPre);
  return act_NS;
}

at::Tensor Moe::forward(const at::Tensor& x_RD, const at::Tensor& residual_RD, const Pass& pass,
                        Stash& stash, bool keep_x) const {
  const at::Tensor x_ND = tp_.to_whole(x_RD, pass.positions_BT.numel()).wait();
  if (keep_x) stash.save(tp_.options().gather_again ? x_RD : x_ND, Until::kWeight, kept_);
  const Choice choice = route(x_ND, pass);
  if (pass.mode == Mode::kTrain) {
    const at::Tensor counts_BE = counts_of_sequences(choice, pass);
    if (pass.sums != nullptr) observe(choice, pass, counts_BE);
    if (counts_BE.defined()) stash.save(counts_BE, Until::kInput, kSequenceCounts);
  }
  stash.save(choice.sent_Nk, experts_.reads_choices() ? Until::kWeight : Until::kInput, kExperts);
  stash.save(choice.logits_NE, Until::kInput, kLogits);
  at::Tensor shared_NS;
  const Fill under = [&] {
    if (has_shared()) shared_NS = shared_activation(x_ND, pass, stash);
  };
  at::Tensor y_ND = experts_.forward(x_ND, weighted(choice), pass, stash, under);
  if (pass.rerun) return {};
  if (has_shared()) {
    add_product(y_ND, kernels::n(shared_NS), kernels::t(params_.shared.down.value()));
    shared_NS.reset();
  }
  at::Tensor y_RD = tp_.to_rows(y_ND).wait();
  dropout_.apply_(y_RD, pass);
  return y_RD.add_(residual_RD);
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
      dweights_Nk, choice.logits_NE, choice.experts_Nk, rule_,
      sequences(pass, counts_whole_sequences() ? stash.take(kSequenceCounts) : at::Tensor()),
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
  const Choice choice = stashed(stash);
  RoutedExperts::Grads grads = experts_.backward_input(dy_ND, weighted(choice), stash, fill);
  if (has_shared()) add_shared_backward(grads.dx_ND, dy_ND, stash);
  if (needs_dy()) stash.save(keeps_whole_dy(pass) ? dy_ND : dropped_RD, Until::kWeight, kMoeDy);
  const at::Tensor dlogits_NE = router_backward(grads.dweights_Nk, choice, pass, stash);
  Moving sum = tp_.to_rows(grads.dx_ND);
  if (tp_.sums()) fill();
  at::Tensor dx_RD = sum.wait();
  const at::Tensor w_ED = widened(params_.router.value());
  const at::Tensor own_RE = tp_.own_rows(dlogits_NE);
  at::Tensor of_router_RD = kernels::matmul(kernels::n(own_RE), kernels::n(w_ED));
  jitter_.backward_(of_router_RD, pass);
  return dx_RD.add_(of_router_RD);
}

void Moe::down_weights(const Pass& pass, Stash& stash) const {
  at::Tensor dy_ND = stash.take(kMoeDy);
  if (!keeps_whole_dy(pass)) dy_ND = tp_.to_whole(dy_ND, pass.positions_BT.numel()).wait();
  if (experts_.reads_dy()) experts_.down_weights(dy_ND, stash.at(kExperts), pass, stash);
  if (stash.has(kSharedAct)) pass.grads->outer(params_.shared.down, dy_ND, stash.take(kSharedAct));
}

void Moe::up_weights(const Pass& pass, Stash& stash) const {
  at::Tensor x_ND = stash.take(kept_);
  if (tp_.options().gather_again) x_ND = tp_.to_whole(x_ND, pass.positions_BT.numel()).wait();
  if (stash.has(kDlogits)) {
    pass.grads->outer(params_.router, stash.take(kDlogits), read_by_router(x_ND, pass));
  }
  if (experts_.reads_x()) experts_.up_weights(x_ND, stash.at(kExperts), pass, stash);
  if (stash.has(kSharedDpre)) pass.grads->outer(params_.shared.up, stash.take(kSharedDpre), x_ND);
}

bool Moe::up_waits(const Stash& stash) const {
  return stash.has(kDlogits) || stash.has(kSharedDpre) ||
         (experts_.reads_x() && experts_.waits_for_up(stash));
}

// Experts whose rows came from other ranks have what they need.
bool Moe::weight_piece(const Pass& pass, Stash& stash) const {
  if (experts_.waits_for_down(stash) && !experts_.reads_dy()) {
    experts_.down_weights({}, {}, pass, stash);
  } else if (stash.has(kMoeDy)) {
    down_weights(pass, stash);
  } else if (experts_.waits_for_up(stash) && !experts_.reads_x()) {
    experts_.up_weights({}, {}, pass, stash);
  } else if (up_waits(stash) && stash.has(kept_)) {
    up_weights(pass, stash);
  } else {
    return false;
  }
  const bool read = experts_.waits_for_down(stash) || experts_.waits_for_up(stash);
  if (stash.has(kExperts) && !read) stash.take(kExperts);
  return true;
}

}  // namespace quatrain
