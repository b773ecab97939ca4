// SPDX-License-Identifier: Apache-2.0
#include "quatrain/verify/tolerance.h"

#include <algorithm>

#include "quatrain/base/median.h"

namespace quatrain {
namespace {

double unit_of_rounding(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64:
      return 0x1p-53;
    case Dtype::kFloat32:
      return 0x1p-24;
    case Dtype::kBFloat16:
      return 0x1p-8;
  }
  return 0.0;
}

// A tensor that rounding happened to leave alone is given what is usual for its kind.
Errors at_least_the_median(Errors errors) {
  for (const Observed kind : {Observed::kGradient, Observed::kWeight}) {
    std::vector<double> of_kind;
    for (const auto& [key, error] : errors) {
      if (key.first == kind) of_kind.push_back(error);
    }
    const double usual = median(std::move(of_kind));
    for (auto& [key, error] : errors) {
      if (key.first == kind) error = std::max(error, usual);
    }
  }
  return errors;
}

// Of the loads the one number that tells any two apart: choices, each times where it is.
std::map<std::string, double> router_values(const RouterReport& router) {
  if (router.loads.empty()) return {};
  double load = 0.0, place = 1.0;
  for (const std::vector<double>& of_layer : router.loads) {
    for (const double choices : of_layer) load += choices * place++;
  }
  return {{"balance loss", router.balance}, {"z-loss", router.z}, {"load", load}};
}

}  // namespace

StepValues values_of(const StepView& view, const StepValues* want) {
  return {view.step,
          view.report.loss,
          view.report.grad_norm,
          want != nullptr ? assemble(view.grads, want->grads) : assemble(view.grads),
          want != nullptr ? assemble(view.weights, want->weights) : assemble(view.weights),
          router_values(view.report.router),
          view.outputs};
}

std::vector<StepValues> all_values(const Side& side, int steps) {
  std::vector<StepValues> all;
  run_steps(side, steps, [&](const StepView& view) {
    all.push_back(values_of(view));
    return true;
  });
  return all;
}

Errors errors_of(const StepValues& got, const StepValues& want) {
  Errors errors;
  for (const auto& [name, max_rel] : compare(got.weights, want.weights)) {
    errors[{Observed::kWeight, name}] = max_rel;
  }
  if (want.step == 0) return errors;
  for (const auto& [name, max_rel] : compare(got.grads, want.grads)) {
    errors[{Observed::kGradient, name}] = max_rel;
  }
  errors[{Observed::kLoss, "loss"}] = relative_error(got.loss, want.loss);
  errors[{Observed::kGradNorm, "grad_norm"}] = relative_error(got.norm, want.norm);
  for (const auto& [what, value] : want.router) {
    errors[{Observed::kRouter, what}] = relative_error(got.router.at(what), value);
  }
  return errors;
}

Tolerances::Tolerances(const Question& question, const std::vector<StepValues>& reference)
    : least_(kFloat64Tolerance) {
  const Dtype dtype = question.reference.job.plan.dtype;
  if (dtype == Dtype::kFloat64 || !question.exact) return;
  least_ = kRoundings * 4.0 * unit_of_rounding(dtype);
  const std::vector<StepValues> exact = all_values(*question.exact, question.steps);
  for (std::size_t s = 0; s < reference.size(); ++s) {
    distances_.push_back(at_least_the_median(errors_of(reference[s], exact[s])));
  }
}

double Tolerances::of(int step, const Key& key) const {
  if (distances_.empty()) return least_;
  const Errors& errors = distances_.at(static_cast<std::size_t>(step));
  const auto found = errors.find(key);
  return found == errors.end() ? least_ : std::max(least_, kRoundings * found->second);
}

double UpdateGain::moved(double lr, double apart) const {
  const OptimizerOptions& options = side_.job.optimizer;
  if (options.name == "adamw") return lr * std::min(2.0, apart / options.eps);
  return lr * apart / (1.0 - options.momentum);
}

void UpdateGain::add(const StepValues& got, const StepValues& want) {
  const double factor = side_.lr_factor ? side_.lr_factor(want.step) : 1.0;
  for (const auto& [name, right] : want.grads) {
    const auto grad = got.grads.find(name);
    if (grad == got.grads.end() || grad->second.sizes() != right.sizes()) continue;
    double& apart = apart_[name];
    if (right.numel() > 0) {
      const at::Tensor difference = grad->second.to(at::kDouble).sub(right.to(at::kDouble));
      apart = std::max(apart, difference.abs().max().item<double>());
    }
    moved_[name] += moved(side_.job.executor.lr * factor, apart);
  }
}

double UpdateGain::of(const std::string& name) const {
  const auto found = moved_.find(name);
  return found == moved_.end() ? 0.0 : found->second;
}

}  // namespace quatrain
