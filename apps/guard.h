// SPDX-License-Identifier: Apache-2.0
// Turns what a command throws into one line on stderr and an exit code; never a stack trace for a
// user's mistake.
#pragma once
#include <functional>

namespace quatrain::apps {

enum ExitCode : int {
  kDone = 0,
  kCheckSaidNo = 1,
  kUsage = 2,
  kBadData = 65,
  kPeerFailed = 69,
  kOurBug = 70,
  kStorage = 74,
  kPreempted = 75
};

int guarded(const std::function<int()>& command);

}  // namespace quatrain::apps
