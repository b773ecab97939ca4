// SPDX-License-Identifier: Apache-2.0
// See untold_steps.h.
#include "apps/untold_steps.h"

#include <utility>

#include "apps/rank_metrics.h"

namespace quatrain::apps {

void UntoldSteps::settle(const StepReport& report) {
  for (Step& step : steps_) {
    if (step.metrics.report.step == report.step) step.metrics.report = report;
  }
}

std::vector<StepMetrics> UntoldSteps::tell(Communicator& world) {
  std::vector<StepMetrics> told;
  for (Step& step : steps_) {
    merge_over_ranks(step.metrics, step.sent, world);
    told.push_back(std::move(step.metrics));
  }
  steps_.clear();
  return told;
}

}  // namespace quatrain::apps
