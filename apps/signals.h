// SPDX-License-Identifier: Apache-2.0
// SIGTERM, SIGUSR1 (which batch systems send before the time is up) and SIGINT ask the training
// loop to end after the current step; a second SIGINT ends at once, as the shell's user expects.
#pragma once
#include <chrono>

namespace quatrain::apps {

class StopSignals {
 public:
  // Each rank of a process may have one: the first installs the handlers, the last to go restores
  // the default ones.
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  // The number of the last signal since they were installed, 0 when none came.
  static int received();
  // Since the last SIGTERM; zero when none came.
  static std::chrono::milliseconds since_terminate();
};

}  // namespace quatrain::apps
