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
  // Opens data, makes model and optimizer, and takes up the checkpoint that the run goes on from;
  // throws before anything is written. `rank` and `console` outlive it.
  Trainer(RunConfig config, Rank& rank, Console& console);
  ~Trainer();
  // Trains to the end, or until it is asked to stop, behind a step and with a checkpoint; returns
  // the exit code. AgreedError where that checkpoint cannot be written.
  int run();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quatrain::apps
