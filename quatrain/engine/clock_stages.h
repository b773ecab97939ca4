// SPDX-License-Identifier: Apache-2.0
// Stages that wait instead of computing: the row walk, lanes and communicators of training, timed
// on more ranks than there are cores. What they measure is set against the clock of schedule/.
#pragma once
#include <chrono>

#include "quatrain/schedule/clock.h"

namespace quatrain {

// Runs each row on a thread of its own. A computation sleeps as long as `durations` says, in units
// of `unit`; a message can be used so long after its send as they say, and holds nobody up until
// then. Returns what happened, in units: every action of every rank, messages from their send to
// their use, and for each rank the time it waited for messages that were sent already.
// `schedule`: one replica, no pairs, messages written. Throws CommError for rows that deadlock.
Timeline run_on_clock(const Schedule& schedule, const Durations& durations,
                      std::chrono::nanoseconds unit);

}  // namespace quatrain
