// SPDX-License-Identifier: Apache-2.0
// One training run on one rank: sets up, steps, evaluates, samples, writes the run folder.
#pragma once
#include <memory>
#include <string>

#include "apps/console.h"
#include "quatrain/spec/run_config.h"

namespace quatrain::apps {

class Trainer {
 public:
  // Opens data and makes model and optimizer; throws before anything is written.
  Trainer(RunConfig config, Console& console);
  ~Trainer();
  // Trains to the end, or to the current step's end after SIGINT or SIGTERM; returns the exit code.
  int run();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quatrain::apps
