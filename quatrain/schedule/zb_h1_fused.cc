// SPDX-License-Identifier: Apache-2.0
// ZB-H1 (Qi et al., arXiv:2401.10241, section 2.1) with backwards in halves only where they fill
// the bubble: on rank r the first r, and those behind the last forward. The others stay fused, so
// that weight halves run under the collectives of their own input halves. The bubble is that of
// ZB-H1 and one weight half; the peak is the same.
#include <algorithm>

#include "quatrain/schedule/build.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {

Schedule zero_bubble_h1_fused(int num_ranks, int num_microbatches) {
  Schedule schedule = one_stage_a_rank(num_ranks, num_microbatches);
  for (int rank = 0; rank < num_ranks; ++rank) {
    RowWriter row(schedule, rank);
    const int warmup = std::min(num_microbatches, num_ranks - 1 - rank);
    const int last_forward = num_microbatches - warmup;
    std::vector<int> waiting;  // for their weight halves
    std::size_t done = 0;
    for (int m = 0; m < warmup; ++m) row.forward(rank, m);
    for (int m = 0; m < num_microbatches; ++m) {
      const bool steady = m < last_forward;
      if (steady) row.forward(rank, m + warmup);
      if (rank == 0 || (steady && m >= rank)) {
        row.backward(rank, m);
        continue;
      }
      row.input(rank, m);
      waiting.push_back(m);
      const auto kept = static_cast<int>(waiting.size() - done);
      if (!steady && kept > rank) row.weight(rank, waiting[done++]);
    }
    for (; done < waiting.size(); ++done) row.weight(rank, waiting[done]);
  }
  return schedule;
}

}  // namespace quatrain
