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
      chain_(units.stage_ranks(), StepNumbers::size_of(units.model().spec())),
      bias_(units, options.router_bias_rate) {
  CHECK(!options.post_validation || options.router_bias_rate == 0.0,
        "a bias moves with loads that post-validation knows too late");
}

RouterReport Update::router_report(const RouterSums& sums, std::int64_t trained_tokens) const {
  RouterReport report;
  if (sums.rows == 0) return report;
  const double tokens = static_cast<double>(std::max<std::int64_t>(trained_tokens, 1));
  report.balance = sums.balance / tokens;
  report.z = options_.router_z_loss * sums.z / tokens;
  report.dropped = sums.dropped;
  report.entropy = sums.entropy / static_cast<double>(sums.rows);
  const auto loads = sums.loads_LE.accessor<double, 2>();
  for (std::int64_t layer = 0; layer < loads.size(0); ++layer) {
    std::vector<double>& of_layer = report.loads.emplace_back();
    for (std::int64_t e = 0; e < loads.size(1); ++e) of_layer.push_back(loads[layer][e]);
  }
  return report;
}

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
  report.router = router_report(numbers.router(), report.trained_tokens);
  report.skipped = !scale(report, report.grad_norm);
}

void Update::run(StepReport& report, double lr, const LossSums& seen) {
  CHECK(!pending_, "step {}: the update before it is not settled", report.step);
  StepNumbers numbers(units_, names_, seen);
  if (!options_.post_validation) {
    numbers.sum_over(units_.stage_ranks());
    fill(report, numbers);
    if (const auto factor = scale(report, report.grad_norm)) {
      optimizer_.step(lr, *factor);
      const at::Tensor loads_LE = numbers.router().loads_LE;
      bias_.update(loads_LE);
      if (loads_LE.defined()) router_loads_LE_ = loads_LE.clone();
    }
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
