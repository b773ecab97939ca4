// SPDX-License-Identifier: Apache-2.0
// What is added up over stages and rows without a clock: times of even stages, what ranks keep.
#include <algorithm>

#include "quatrain/base/check.h"
#include "quatrain/schedule/clock.h"

namespace quatrain {

double time_of(const StageDurations& stage, ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return stage.forward;
    case ActionKind::kBackwardInput:
      return stage.input;
    case ActionKind::kBackwardWeight:
      return stage.weight;
    case ActionKind::kBackward:
      return stage.fused;
    case ActionKind::kOptimizerStep:
      return stage.optimizer;
    case ActionKind::kSendForward:
    case ActionKind::kRecvForward:
    case ActionKind::kSendBackward:
    case ActionKind::kRecvBackward:
    case ActionKind::kUnshard:
    case ActionKind::kReshard:
    case ActionKind::kReduceGrad:
    case ActionKind::kReduceTied:
    case ActionKind::kNormPart:
      return 0.0;
  }
  return 0.0;
}

Durations even_durations(const Schedule& schedule, const RankTimes& times) {
  CHECK(!schedule.rank_of_stage.empty(), "no placement");
  // Of one replica: the second one's stages do not add to a micro-batch's time on a rank.
  std::vector<int> stages_of_rank(schedule.per_rank.size(), 0);
  for (int rank : schedule.rank_of_stage[0]) ++stages_of_rank[static_cast<std::size_t>(rank)];
  Durations durations;
  for (int rank : schedule.rank_of_stage[0]) {
    const int stages = stages_of_rank[static_cast<std::size_t>(rank)];
    durations.of_stage.push_back(to_stage(times, 1.0 / stages));
  }
  return durations;
}

std::vector<double> peak_stash(const Schedule& schedule, std::span<const StashDeltas> of_stage) {
  CHECK(of_stage.empty() || of_stage.size() == static_cast<std::size_t>(schedule.num_stages),
        "deltas of {} stages, a schedule of {}", of_stage.size(), schedule.num_stages);
  std::vector<double> peaks;
  for (const std::vector<Action>& row : schedule.per_rank) {
    double now = 0.0, peak = 0.0;
    for (const Action& slot : row) {
      double freed = 0.0;  // a pair's halves run side by side: it frees when both are done
      for (const Action* action = &slot; action != nullptr; action = action->overlap.get()) {
        const StashDeltas delta =
            of_stage.empty() ? StashDeltas{} : of_stage[static_cast<std::size_t>(action->stage)];
        if (action->kind == ActionKind::kForward) now += delta.forward;
        if (action->kind == ActionKind::kBackwardInput) freed += delta.input;
        if (action->kind == ActionKind::kBackwardWeight) freed += delta.weight;
        if (action->kind == ActionKind::kBackward) freed += delta.input + delta.weight;
      }
      peak = std::max(peak, now);
      now += freed;
      peak = std::max(peak, now);
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace quatrain
