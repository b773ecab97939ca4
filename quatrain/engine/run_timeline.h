// SPDX-License-Identifier: Apache-2.0
// A step that ran beside the clock's timeline of the same rows with the durations that the run
// itself had: what is left between them is what the rows do not say, and where it went.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "quatrain/engine/trace.h"
#include "quatrain/schedule/clock.h"

namespace quatrain {

// Of one rank, in microseconds, from the first begin to the last end of all ranks.
struct RankTime {
  double compute = 0.0;  // its thread at work, without the waits of a computation
  // Its thread blocked on a message: before the neighbour sent it (a bubble, or ranks that are not
  // equally fast); sent, but this rank had not reached its RECV; both there, until it had arrived.
  double not_sent = 0.0, late_receive = 0.0, lane = 0.0;
  double collectives = 0.0;  // blocked on those of its units
  double idle = 0.0;         // before its first action and behind its last
  double other = 0.0;        // between actions
  double simulated_idle = 0.0;
};
struct RunTimeline {
  Timeline simulated;
  double begin_us = 0.0;  // of the run, on the events' clock: the timeline's 0
  double measured_us = 0.0, simulated_us = 0.0;  // from the first begin to the last end
  std::vector<RankTime> ranks;
};
// `events`: of each rank, of one step that ran `schedule`, on one clock.
RunTimeline compare(const Schedule& schedule, std::span<const std::vector<TraceEvent>> events);

// A line a rank, and one for all.
std::string to_table(const RunTimeline& run);

}  // namespace quatrain
