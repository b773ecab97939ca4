// SPDX-License-Identifier: Apache-2.0
// When a rank called its collectives, when it came back for them and when it had them: the part of
// a step that its actions do not show.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/comm/timed.h"

namespace quatrain {

// Times are microseconds of the steady clock, one for all ranks of a machine.
struct TimedCollective {
  std::string group;
  Operation operation;
  std::int64_t bytes;  // of the larger tensor
  double called_us;
  double wait_us = 0.0;  // wait() was called
  double done_us = 0.0;  // and returned
};
// One rank's, in the order in which they were waited for. Belongs to that rank's thread.
using CollectiveTimes = std::vector<TimedCollective>;

double steady_us();

// Writes down what a timed communicator tells; `times` outlives it.
CommListener into(CollectiveTimes& times);

// Rows for a Chrome trace, as to_chrome_rows(): "flight" from call to end, "wait" the thread's.
std::string to_chrome_rows(const CollectiveTimes& times, std::size_t first, int rank);

}  // namespace quatrain
