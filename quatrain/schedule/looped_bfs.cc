// SPDX-License-Identifier: Apache-2.0
// Breadth-first looped pipeline (Lamy-Poirier, arXiv:2211.05953): all micro-batches pass one chunk
// before the next, so that a chunk's weights are gathered once and its gradients are whole early.
// Backwards run from the last micro-batch to the first.
#include "quatrain/schedule/build.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {

Schedule looped_bfs(int num_ranks, int chunks, int num_microbatches) {
  Schedule schedule = empty_schedule(StagePlacement::kLoop, num_ranks, chunks, num_microbatches);
  for (int rank = 0; rank < num_ranks; ++rank) {
    RowWriter row(schedule, rank);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int m = 0; m < num_microbatches; ++m) row.forward(chunk * num_ranks + rank, m);
    }
    for (int chunk = chunks - 1; chunk >= 0; --chunk) {
      for (int m = num_microbatches - 1; m >= 0; --m) {
        row.backward(chunk * num_ranks + rank, m);
      }
    }
  }
  return schedule;
}

}  // namespace quatrain
