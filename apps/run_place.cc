// SPDX-License-Identifier: Apache-2.0
// See run_place.h.
#include "apps/run_place.h"

#include <fmt/format.h>

#include <cstdlib>
#include <utility>

#include "apps/job.h"
#include "apps/saver.h"
#include "apps/weights.h"
#include "quatrain/base/text.h"

namespace quatrain::apps {

RunPlace::RunPlace(const RunConfig& config)
    : config_(config),
      schedule_(lr_schedule_of(config)),
      lr_step_tokens_(static_cast<double>(step_tokens())) {
  start_.extra = hub_entries(config.weights);
}

void RunPlace::take_up(TrainingState state) {
  start_ = std::move(state);
  const auto number = [&](const char* name, double other) {
    const auto found = start_.extra.find(name);
    return found == start_.extra.end() ? other : std::strtod(found->second.c_str(), nullptr);
  };
  first_loss = number(kFirstLossEntry, 0.0);
  lr_step_tokens_ = number(kLrTokensEntry, lr_step_tokens_);
  schedule_.total_steps = lr_step(config_.training.steps);
}

std::int64_t RunPlace::step_tokens() const {
  return config_.training.global_batch * config_.training.seq_len;
}

std::int64_t RunPlace::tokens_at(std::int64_t step) const {
  return start_.tokens + (step - start_.step) * step_tokens();
}

// Steps of the schedule are the run's, or stand for tokens.
double RunPlace::lr_step(std::int64_t step) const {
  if (config_.lr_schedule.unit == "steps") return static_cast<double>(step);
  return static_cast<double>(tokens_at(step)) / lr_step_tokens_;
}

double RunPlace::lr_factor_at(std::int64_t step) const {
  return lr_factor(schedule_, lr_step(step));
}

TrainingState RunPlace::state_at(std::int64_t step, std::vector<std::int64_t> cursor,
                                 const std::string& data) const {
  TrainingState state;
  for (const char* name : {kHubConfigEntry, kHubFolderEntry}) {
    const auto found = start_.extra.find(name);
    if (found != start_.extra.end()) state.extra.insert(*found);
  }
  state.step = step;
  state.tokens = tokens_at(step);
  state.data_cursor = std::move(cursor);
  state.extra[kDataEntry] = data;
  state.extra[kFirstLossEntry] = hex_float(first_loss);
  state.extra[kLrTokensEntry] = fmt::format("{}", lr_step_tokens_);
  return state;
}

}  // namespace quatrain::apps
