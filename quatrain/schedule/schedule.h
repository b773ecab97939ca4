// SPDX-License-Identifier: Apache-2.0
// A schedule is data: rows of actions, one a pipeline rank. Generators make compute-only rows,
// passes add the rest, check() proves them, the executor walks them.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/schedule/action.h"
#include "quatrain/schedule/durations.h"
#include "quatrain/schedule/stage_placement.h"

namespace quatrain {

struct Schedule {
  int num_stages = 1;
  int num_microbatches = 1;
  std::vector<std::vector<int>> rank_of_stage;  // [replica][stage]
  std::vector<std::vector<Action>> per_rank;    // [pp degree][n]
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

// Generators, of p ranks and m micro-batches; each names its paper where it is defined. They throw
// BugError where they are not defined; make_schedule() refuses in words.

// All forwards, then all fused backwards.
Schedule gpipe(int num_ranks, int num_microbatches);
// min(m, p - 1 - r) warm-up forwards, then one forward, one backward.
Schedule one_f_one_b(int num_ranks, int num_microbatches);
// Twice the warm-up.
Schedule eager_1f1b(int num_ranks, int num_microbatches);
// Stages in a loop. `group` micro-batches pass a chunk before the next, 0: as many equal groups as
// have p or more (they may differ by one). A group and the last one's rest have p or more, or there
// is one group.
Schedule interleaved_1f1b(int num_ranks, int chunks, int num_microbatches, int group = 0);
Schedule looped_bfs(int num_ranks, int chunks, int num_microbatches);
// Split backwards.
Schedule zero_bubble_h1(int num_ranks, int num_microbatches);
Schedule zero_bubble_h1_fused(int num_ranks, int num_microbatches);
Schedule zero_bubble_h2(int num_ranks, int num_microbatches);
Schedule interleaved_zb1p(int num_ranks, int chunks, int num_microbatches, int group = 0);
// Two stages a rank in a V.
Schedule zero_bubble_v(int num_ranks, int num_microbatches);
Schedule v_half(int num_ranks, int num_microbatches);
Schedule v_min(int num_ranks, int num_microbatches);
Schedule one_f_one_b_v(int num_ranks, int num_microbatches);
Schedule dualpipe_v(int num_ranks, int num_microbatches);  // m >= 2p
// Two replicas; micro-batches m/2 and up run in the second. p and m even, m >= 2p.
Schedule dualpipe(int num_ranks, int num_microbatches);

// Forwards alone, for evaluation, of stages placed in any way; m may be 0.
Schedule forward_schedule(const std::vector<int>& rank_of_stage, int num_microbatches);

struct ScheduleRequest {
  int num_ranks = 1;
  int num_microbatches = 1;
  int chunks = 1;
  int group = 0;             // of interleaved schedules; 0: chosen
  ScheduleCosts costs = {};  // of schedules made for them
};

// A line of the table of schedules. Formulas are text, in p, m, v (chunks), r (rank) and the times
// F, I, W of a rank's share of a micro-batch; the peak counts chunk activations.
struct ScheduleInfo {
  std::string_view name;
  StagePlacement placement;
  int min_chunks;
  int max_chunks;
  std::string_view bubble;
  std::string_view peak;
  std::string_view source;
};
std::vector<ScheduleInfo> schedule_table();
std::vector<std::string_view> schedule_names();
// By the name a config gives; throws ConfigError with the names that exist and the nearest one, or
// with the rules that the request breaks and what would fit.
Schedule make_schedule(std::string_view name, const ScheduleRequest& request);

// Passes.
Schedule split_backward(
    const Schedule& schedule);  // every B becomes I then W, a pair (F;B) (F;I) W
Schedule merge_backward(const Schedule& schedule);       // I with its W directly behind becomes B
Schedule without_pairs(const Schedule& schedule);        // (F;B) becomes F, then B
Schedule with_optimizer_step(const Schedule& schedule);  // appends <stage>OPTIMIZER_STEP a stage

// All broken rules: missing or repeated action, backward before forward, weight half before input
// half, wrong rank, deadlock.
Problems check(const Schedule& schedule);

std::string to_csv(const Schedule& schedule);  // one row a rank
// `rank_of_stage` is read off the rows. Throws ConfigError naming row, column and text.
Schedule schedule_from_csv(std::string_view text);

}  // namespace quatrain
