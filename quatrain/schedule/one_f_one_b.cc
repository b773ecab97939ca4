// SPDX-License-Identifier: Apache-2.0
// 1F1B, or PipeDream-flush (Narayanan et al., arXiv:2104.04473, section 2.2.1, figure 4 top).
#include <algorithm>

#include "quatrain/schedule/build.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {

Schedule one_f_one_b(int num_ranks, int num_microbatches) {
  Schedule schedule = one_stage_a_rank(num_ranks, num_microbatches);
  for (int rank = 0; rank < num_ranks; ++rank) {
    std::vector<Action>& row = schedule.per_rank[static_cast<std::size_t>(rank)];
    const int warmup = std::min(num_microbatches, num_ranks - 1 - rank);
    for (int m = 0; m < warmup; ++m) row.push_back(compute(rank, ActionKind::kForward, m));
    for (int m = 0; m < num_microbatches; ++m) {
      if (m + warmup < num_microbatches) {
        row.push_back(compute(rank, ActionKind::kForward, m + warmup));
      }
      row.push_back(compute(rank, ActionKind::kBackward, m));
    }
  }
  return schedule;
}

}  // namespace quatrain
