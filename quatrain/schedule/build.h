// SPDX-License-Identifier: Apache-2.0
// What generators share.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "quatrain/base/check.h"
#include "quatrain/schedule/schedule.h"
#include "quatrain/schedule/stage_placement.h"

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

// Empty rows.
inline Schedule empty_schedule(StagePlacement placement, int num_ranks, int chunks,
                               int num_microbatches) {
  CHECK(num_ranks >= 1 && num_microbatches >= 1, "{} ranks and {} micro-batches", num_ranks,
        num_microbatches);
  Schedule schedule;
  schedule.num_stages = num_ranks * chunks;
  schedule.num_microbatches = num_microbatches;
  schedule.rank_of_stage = place_stages(placement, num_ranks, chunks);
  schedule.per_rank.resize(static_cast<std::size_t>(num_ranks));
  return schedule;
}

inline Schedule one_stage_a_rank(int num_ranks, int num_microbatches) {
  return empty_schedule(StagePlacement::kLinear, num_ranks, 1, num_microbatches);
}

// The schedule with each row written anew: append(row, action) for each of its actions in turn.
template <class Append>
Schedule with_rows(const Schedule& schedule, const Append& append) {
  Schedule result = schedule;
  for (std::vector<Action>& row : result.per_rank) {
    std::vector<Action> written;
    for (Action& action : row) append(written, std::move(action));
    row = std::move(written);
  }
  return result;
}

// Appends to one rank's row.
class RowWriter {
 public:
  RowWriter(Schedule& schedule, int rank)
      : row_(schedule.per_rank[static_cast<std::size_t>(rank)]) {}

  void forward(int stage, int microbatch) { add(stage, ActionKind::kForward, microbatch); }
  void input(int stage, int microbatch) { add(stage, ActionKind::kBackwardInput, microbatch); }
  void weight(int stage, int microbatch) { add(stage, ActionKind::kBackwardWeight, microbatch); }
  void backward(int stage, int microbatch) { add(stage, ActionKind::kBackward, microbatch); }
  void add(int stage, ActionKind kind, int microbatch) {
    row_.push_back(compute(stage, kind, microbatch));
  }

 private:
  std::vector<Action>& row_;
};

}  // namespace quatrain
