// SPDX-License-Identifier: Apache-2.0
// Stages that wait instead of computing: the row walk, lanes and communicators of training, timed
// on more ranks than there are cores. What they measure is set against the clock of schedule/.
#pragma once
#include <chrono>
#include <cstdint>

#include "quatrain/schedule/clock.h"

namespace quatrain {

// What holds ranks together between steps: a sum over all of them, or post-validation's chain
// (engine/post_validation.h), whose numbers a rank needs at its next step's first backward.
enum class StepEnd : std::uint8_t { kSum, kPostValidation };

struct ClockRun {
  std::chrono::nanoseconds unit = std::chrono::milliseconds(20);  // of the durations
  int steps = 1;
  StepEnd end = StepEnd::kSum;
};

// Runs each row, once a step, on a thread of its own. A computation sleeps as long as `durations`
// says, in units; a message can be used so long after its send as they say, and holds nobody up
// until then. Returns what happened, in units: every action of every rank, messages from their send
// to their use, and for each rank the time it waited for messages that were sent already.
// `schedule`: one replica, no pairs, messages written. Throws CommError for rows that deadlock.
Timeline run_on_clock(const Schedule& schedule, const Durations& durations, const ClockRun& run);

// Of such a timeline of two steps or more: from the end of a step to that of the next, in the mean,
// on the rank where that is longest.
double step_period(const Timeline& timeline, int steps);

}  // namespace quatrain
