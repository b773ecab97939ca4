// SPDX-License-Identifier: Apache-2.0
// A schedule is data: rows of actions, one a pipeline rank. Generators make compute-only rows,
// passes add the rest, check() proves them, the executor walks them.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/schedule/action.h"

namespace quatrain {

struct Schedule {
  int num_stages = 1;
  int num_microbatches = 1;
  std::vector<std::vector<int>> rank_of_stage;  // [replica][stage]
  std::vector<std::vector<Action>> per_rank;    // [pp degree][n]
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

// All forwards, then all fused backwards (Huang et al., arXiv:1811.06965). Any m >= 1.
Schedule gpipe(int num_ranks, int num_microbatches);
// min(m, p - 1 - r) warm-up forwards, then one forward, one backward (PipeDream-flush,
// Narayanan et al., arXiv:2104.04473, section 2.2.1). Any m >= 1.
Schedule one_f_one_b(int num_ranks, int num_microbatches);

struct ScheduleRequest {
  int num_ranks = 1;
  int num_microbatches = 1;
  int chunks = 1;
};
// By the name a config gives; throws ConfigError with the names that exist and the nearest one.
Schedule make_schedule(std::string_view name, const ScheduleRequest& request);
std::vector<std::string_view> schedule_names();

// Passes.
Schedule split_backward(const Schedule& schedule);       // every B becomes I then W
Schedule with_optimizer_step(const Schedule& schedule);  // appends <stage>OPTIMIZER_STEP a stage

// All broken rules: missing or repeated action, backward before forward, weight half before input
// half, wrong rank, deadlock.
Problems check(const Schedule& schedule);

std::string to_csv(const Schedule& schedule);  // one row a rank
// `rank_of_stage` is read off the rows. Throws ConfigError naming row, column and text.
Schedule schedule_from_csv(std::string_view text);

}  // namespace quatrain
