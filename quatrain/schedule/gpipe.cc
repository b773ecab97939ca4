// SPDX-License-Identifier: Apache-2.0
// GPipe (Huang et al., arXiv:1811.06965, figure 2c): all forwards, then all backwards. Backwards
// run in the order of the forwards; the paper's figure runs them in reverse. The bubble is the
// same.
#include "quatrain/schedule/build.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {

Schedule gpipe(int num_ranks, int num_microbatches) {
  Schedule schedule = one_stage_a_rank(num_ranks, num_microbatches);
  for (int rank = 0; rank < num_ranks; ++rank) {
    RowWriter row(schedule, rank);
    for (int m = 0; m < num_microbatches; ++m) row.forward(rank, m);
    for (int m = 0; m < num_microbatches; ++m) row.backward(rank, m);
  }
  return schedule;
}

}  // namespace quatrain
