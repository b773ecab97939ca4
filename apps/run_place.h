// SPDX-License-Identifier: Apache-2.0
// Where a run stands at a step, counted from its beginning or from the checkpoint that it went on
// from: tokens seen, the learning rate, and what a checkpoint says of it.
#pragma once
#include <cstdint>
#include <string>

#include "quatrain/checkpoint/manifest.h"
#include "quatrain/optim/lr_schedule.h"
#include "quatrain/spec/run_config.h"

namespace quatrain::apps {

class RunPlace {
 public:
  // `config` outlives it.
  explicit RunPlace(const RunConfig& config);
  void take_up(TrainingState state);

  const TrainingState& start() const { return start_; }  // step 0, or the checkpoint's
  std::int64_t step_tokens() const;
  std::int64_t tokens_at(std::int64_t step) const;  // seen behind it
  double lr_factor_at(std::int64_t step) const;
  // `data`: entry kDataEntry. Plan, seed and optimizer are RunSaver's to add.
  TrainingState state_at(std::int64_t step, std::vector<std::int64_t> cursor,
                         const std::string& data) const;

  double first_loss = 0.0;  // of step 1

 private:
  double lr_step(std::int64_t step) const;

  const RunConfig& config_;
  TrainingState start_;
  LrSchedule schedule_;
  double lr_step_tokens_ = 0.0;  // of the first run's steps
};

}  // namespace quatrain::apps
