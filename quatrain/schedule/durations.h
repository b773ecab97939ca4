// SPDX-License-Identifier: Apache-2.0
// What one micro-batch costs a pipeline stage: time of its actions, and what its rank keeps between
// them. Given to the clock and to schedules that are made for given costs.
#pragma once
#include <vector>

namespace quatrain {

// In any one unit.
struct StageDurations {
  double forward = 1.0;
  double input = 1.0;          // the backward's input half
  double weight = 1.0;         // its weight half
  double fused = 2.0;          // both in one action
  double send_forward = 0.0;   // its output to the next stage, where that is on another rank
  double send_backward = 0.0;  // its input gradient to the stage before
  double optimizer = 0.0;
  friend bool operator==(const StageDurations&, const StageDurations&) = default;
};

// Of one rank's whole share of a micro-batch, and of one message.
struct RankTimes {
  double forward = 1.0;
  double input = 1.0;
  double weight = 1.0;
  double message = 0.0;
};
// A stage that has `share` of its rank's work.
inline StageDurations to_stage(const RankTimes& times, double share = 1.0) {
  return {times.forward * share,
          times.input * share,
          times.weight * share,
          (times.input + times.weight) * share,
          times.message,
          times.message,
          0.0};
}

// Change of what a rank keeps, at each action; a fused backward frees what both halves would. In
// activations, bytes or any one unit.
struct StashDeltas {
  double forward = 1.0;
  double input = 0.0;
  double weight = -1.0;
  friend bool operator==(const StashDeltas&, const StashDeltas&) = default;
};

// What schedules made for given costs ask for.
struct ScheduleCosts {
  RankTimes times;
  std::vector<StageDurations> durations = {};  // [stage], where stages differ; else `times`
  StashDeltas stash = {};                      // of each stage
  // Of a rank, in what forward of as many micro-batches as there are ranks keeps; 0: as usual for
  // the schedule.
  double memory_limit = 0.0;
};

}  // namespace quatrain
