// SPDX-License-Identifier: Apache-2.0
// What a pipelined step would take by the clock if each action took what it took here in the
// median: the schedule's own promise for this model, whose stages are not equal.
#pragma once
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "quatrain/comm/communicator.h"
#include "quatrain/engine/trace.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {

// Times of this rank's actions over steps.
class ActionTimes {
 public:
  void add(std::span<const TraceEvent> step);
  // Seconds from the first begin to the last end of all ranks; messages take none. Called by every
  // rank of `world`.
  double clock_s(Communicator& world, const Schedule& schedule) const;

 private:
  std::map<std::pair<ActionKind, int>, std::vector<double>> us_;  // [kind, stage]
};

}  // namespace quatrain
