// SPDX-License-Identifier: Apache-2.0
// One training run, seen by one of its ranks: sets up, steps, evaluates, samples; rank 0 writes the
// run folder and speaks.
#pragma once
#include <memory>
#include <string>

#include "apps/console.h"
#include "apps/ranks.h"
#include "quatrain/spec/run_config.h"

namespace quatrain::apps {

class Trainer {
 public:
  // Opens data and makes model and optimizer; throws before anything is written. `rank` and
  // `console` outlive it.
  Trainer(RunConfig config, Rank& rank, Console& console);
  ~Trainer();
  // Trains to the end, or to the current step's end after SIGINT or SIGTERM; returns the exit code.
  int run();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quatrain::apps
