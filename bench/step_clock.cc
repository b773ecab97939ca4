// SPDX-License-Identifier: Apache-2.0
#include "step_clock.h"

#include <ATen/ops/zeros.h>

#include "quatrain/base/median.h"
#include "quatrain/schedule/clock.h"

namespace quatrain {
namespace {

constexpr auto kKinds = static_cast<std::int64_t>(ActionKind::kOptimizerStep) + 1;

}  // namespace

void ActionTimes::add(std::span<const TraceEvent> step) {
  for (const TraceEvent& event : step) {
    if (event.lane != TraceLane::kCompute) continue;
    us_[{event.action.kind, event.action.stage}].push_back(event.end_us - event.begin_us);
  }
}

double ActionTimes::clock_s(Communicator& world, const Schedule& schedule) const {
  at::Tensor medians = at::zeros({kKinds, schedule.num_stages}, at::kDouble);
  auto us = medians.accessor<double, 2>();
  for (const auto& [of, values] : us_) {
    us[static_cast<std::int64_t>(of.first)][of.second] = median(values);
  }
  world.all_reduce(medians, ReduceOp::kMax).wait();  // a stage is one rank's
  Durations durations;
  durations.of_stage.resize(static_cast<std::size_t>(schedule.num_stages));
  durations.measured = [&](const Action& action) {
    return us[static_cast<std::int64_t>(action.kind)][action.stage];
  };
  return simulate(schedule, durations).makespan / 1e6;
}

}  // namespace quatrain
