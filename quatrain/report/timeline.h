// SPDX-License-Identifier: Apache-2.0
// The last traced step of a run as lanes: what each pipeline rank did, and above it what the
// schedule's clock says with the mean durations of each stage.
#pragma once
#include <optional>

#include "quatrain/report/chart.h"
#include "quatrain/report/run.h"

namespace quatrain {

struct StepTimeline {
  LaneChart chart;
  double measured_ms = 0;
  std::optional<double> predicted_ms = {};  // absent where the plan's schedule is a file
};
// Nothing where the run has no trace, or none of a whole step.
std::optional<StepTimeline> step_timeline(const RunRecord& run);

}  // namespace quatrain
