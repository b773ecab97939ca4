// SPDX-License-Identifier: Apache-2.0
// 1F1B, or PipeDream-flush (Narayanan et al., arXiv:2104.04473, section 2.2.1, figure 4 top), and
// its eager form, which warms up with twice as many forwards: messages hide behind them.
#include <algorithm>

#include "quatrain/schedule/build.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

// Rank r warms up with `per_hop` forwards for each rank behind it.
Schedule alternating(int num_ranks, int num_microbatches, int per_hop) {
  Schedule schedule = one_stage_a_rank(num_ranks, num_microbatches);
  for (int rank = 0; rank < num_ranks; ++rank) {
    RowWriter row(schedule, rank);
    const int warmup = std::min(num_microbatches, per_hop * (num_ranks - 1 - rank));
    for (int m = 0; m < warmup; ++m) row.forward(rank, m);
    for (int m = 0; m < num_microbatches; ++m) {
      if (m + warmup < num_microbatches) row.forward(rank, m + warmup);
      row.backward(rank, m);
    }
  }
  return schedule;
}

}  // namespace

Schedule one_f_one_b(int num_ranks, int num_microbatches) {
  return alternating(num_ranks, num_microbatches, 1);
}

Schedule eager_1f1b(int num_ranks, int num_microbatches) {
  return alternating(num_ranks, num_microbatches, 2);
}

}  // namespace quatrain
