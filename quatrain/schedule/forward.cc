// SPDX-License-Identifier: Apache-2.0
// Forwards alone, of stages wherever they are. In each group of as many micro-batches as there are
// ranks a rank runs its stages one after the other, so that a group fills the ranks while the next
// one follows; the order (group, stage, micro-batch) is one that the data allows.
#include <algorithm>

#include "quatrain/schedule/build.h"

namespace quatrain {

Schedule forward_schedule(const std::vector<int>& rank_of_stage, int num_microbatches) {
  CHECK(!rank_of_stage.empty() && num_microbatches >= 0, "{} stages and {} micro-batches",
        rank_of_stage.size(), num_microbatches);
  Schedule schedule;
  schedule.num_stages = static_cast<int>(rank_of_stage.size());
  schedule.num_microbatches = num_microbatches;
  schedule.rank_of_stage = {rank_of_stage};
  const int ranks = *std::max_element(rank_of_stage.begin(), rank_of_stage.end()) + 1;
  schedule.per_rank.resize(static_cast<std::size_t>(ranks));
  for (int group = 0; group < num_microbatches; group += ranks) {
    const int end = std::min(group + ranks, num_microbatches);
    for (int stage = 0; stage < schedule.num_stages; ++stage) {
      RowWriter row(schedule, rank_of_stage[static_cast<std::size_t>(stage)]);
      for (int m = group; m < end; ++m) row.forward(stage, m);
    }
  }
  return schedule;
}

}  // namespace quatrain
