// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/update.h"

#include <algorithm>
#include <cmath>

#include "quatrain/kernels/check.h"

namespace quatrain {
namespace {

// Of the whole model: the order in which norms are summed, whatever a rank holds.
std::vector<std::string> sorted_names(const ModelSpec& spec) {
  std::vector<std::string> names;
  for (const ParameterInfo& info : parameters(spec)) names.push_back(info.name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

Update::Update(ZeroUnits& units, Optimizer& optimizer, const UpdateOptions& options)
    : units_(units),
      optimizer_(optimizer),
      options_(options),
      names_(sorted_names(units.model().spec())),
      chain_(units.stage_ranks(), names_.size()) {}

std::optional<double> Update::scale(const StepReport& report, double norm) const {
  if (report.trained_tokens == 0 || !std::isfinite(norm)) return std::nullopt;
  return clip_scale(norm, options_.max_norm);
}

void Update::fill(StepReport& report, const StepNumbers& numbers) const {
  report.loss = numbers.loss();
  if (report.trained_tokens > 0) report.loss /= static_cast<double>(report.trained_tokens);
  report.max_logit = numbers.max_logit();
  report.max_attention_lse = numbers.max_attention_lse();
  report.grad_norm = numbers.grad_norm();
  report.skipped = !scale(report, report.grad_norm);
}

void Update::run(StepReport& report, double lr, const LossSums& seen) {
  CHECK(!pending_, "step {}: the update before it is not settled", report.step);
  StepNumbers numbers(units_, names_, seen);
  if (!options_.post_validation) {
    numbers.sum_over(units_.stage_ranks());
    fill(report, numbers);
    if (const auto factor = scale(report, report.grad_norm)) optimizer_.step(lr, *factor);
    return;
  }
  // A norm only grows along the chain: what is clipped or not finite here is so for all, but by
  // how much only the last stage knows.
  std::optional<double> guess = scale(report, chain_.pass_on(std::move(numbers)).grad_norm());
  if (guess && *guess != 1.0) guess.reset();
  optimizer_.keep();
  if (guess) optimizer_.step(lr, *guess);
  made_ = {lr, guess, guess};
  pending_ = true;
}

bool Update::settle(StepReport& report) {
  CHECK(pending_, "step {}: no update waits to be settled", report.step);
  pending_ = false;
  fill(report, chain_.whole());
  made_.right = scale(report, report.grad_norm);
  return made_.right == 1.0;
}

void Update::mend() {
  if (made_.applied == made_.right) return;
  optimizer_.restore();
  if (made_.right) optimizer_.step(made_.lr, *made_.right);
}

}  // namespace quatrain
