// SPDX-License-Identifier: Apache-2.0
// Tells when each operation began, when its rank's thread came to wait for it, and when that ended:
// what a trace shows of communication that layers start by themselves.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "quatrain/comm/communicator.h"
#include "quatrain/comm/describe.h"

namespace quatrain {

struct CommTiming {
  using Time = std::chrono::steady_clock::time_point;
  std::string_view group;  // valid while the listener runs
  Operation operation;
  std::int64_t bytes;  // of the larger tensor
  Time began;
  Time wait_began;
  Time ended;
  bool blocked;  // not done yet when the wait began
};
// Called on the rank's thread at the end of each wait.
using CommListener = std::function<void(const CommTiming&)>;

// `listener` outlives the communicator, its groups and their operations; while it is empty nobody
// listens.
std::unique_ptr<Communicator> make_timed(std::unique_ptr<Communicator> inner,
                                         const CommListener& listener);

}  // namespace quatrain
