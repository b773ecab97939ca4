// SPDX-License-Identifier: Apache-2.0
// What generators share.
#pragma once
#include <numeric>

#include "quatrain/base/check.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {

inline Action compute(int stage, ActionKind kind, int microbatch) {
  Action action;
  action.stage = stage;
  action.kind = kind;
  action.microbatch = microbatch;
  return action;
}

// UNSHARD, RESHARD or REDUCE_GRAD of a ZeRO unit.
inline Action on_unit(int stage, ActionKind kind, int unit) {
  Action action;
  action.stage = stage;
  action.kind = kind;
  action.unit = unit;
  return action;
}

// Empty rows; stage s lives on rank s.
inline Schedule one_stage_a_rank(int num_ranks, int num_microbatches) {
  CHECK(num_ranks >= 1 && num_microbatches >= 1, "{} ranks and {} micro-batches", num_ranks,
        num_microbatches);
  Schedule schedule;
  schedule.num_stages = num_ranks;
  schedule.num_microbatches = num_microbatches;
  schedule.rank_of_stage.assign(1, std::vector<int>(static_cast<std::size_t>(num_ranks)));
  std::iota(schedule.rank_of_stage[0].begin(), schedule.rank_of_stage[0].end(), 0);
  schedule.per_rank.resize(static_cast<std::size_t>(num_ranks));
  return schedule;
}

}  // namespace quatrain
