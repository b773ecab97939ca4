// SPDX-License-Identifier: Apache-2.0
// SIGINT and SIGTERM ask the training loop to end after the current step; a second SIGINT ends at
// once, as the shell's user expects.
#pragma once

namespace quatrain::apps {

class StopSignals {
 public:
  StopSignals();   // installs the handlers
  ~StopSignals();  // restores the previous ones
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  int received() const;      // the signal's number, 0 when none came
  static bool terminated();  // SIGTERM came, since the handlers were installed last
};

}  // namespace quatrain::apps
