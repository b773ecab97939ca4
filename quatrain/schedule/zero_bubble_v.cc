// SPDX-License-Identifier: Apache-2.0
// ZB-V by hand (Qi et al., arXiv:2401.10241, section 6): two chunks a rank in a V. Every rank holds
// as much as 1F1B's first, and with equal times there is no bubble. The shape is that of at least
// 2p - 1 micro-batches; fewer leave holes in it.
#include <algorithm>

#include "quatrain/schedule/build.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

// One rank: `near` is its chunk on the way down the ranks, `far` the one on the way up.
class Row {
 public:
  Row(Schedule& schedule, int rank, int num_ranks)
      : row_(schedule, rank),
        rank_(rank),
        ranks_(num_ranks),
        real_(schedule.num_microbatches),
        near_{rank},
        far_{2 * num_ranks - 1 - rank} {}

  void write() {
    const int shaped = std::max(2 * ranks_ - 1, real_);
    for (int i = 0; i < 2 * (ranks_ - rank_) - 1; ++i) forward(near_);
    for (int i = 0; i < rank_; ++i) {
      forward(far_);
      forward(near_);
    }
    for (int i = 0; i < ranks_ - rank_; ++i) {
      forward(far_);
      both_halves(far_);
    }
    while (far_.forwards < near_.forwards || near_.forwards < shaped) {
      if (near_.forwards < shaped) forward(near_);
      both_halves(near_);
      forward(far_);
      both_halves(far_);
    }
    drain(shaped);
  }

 private:
  struct Chunk {
    int stage;
    int forwards = 0, inputs = 0, weights = 0;
  };

  void drain(int shaped) {
    for (int i = 0; i < rank_; ++i) {
      input(near_);
      input(far_);
    }
    for (int i = 0; i < ranks_ - rank_; ++i) {
      input(near_);
      weight(near_);
    }
    while (far_.weights < shaped) weight(far_);
    while (near_.weights < shaped) weight(near_);
  }

  void both_halves(Chunk& chunk) {
    input(chunk);
    weight(chunk);
  }
  void forward(Chunk& chunk) { add(chunk, ActionKind::kForward, chunk.forwards++); }
  void input(Chunk& chunk) { add(chunk, ActionKind::kBackwardInput, chunk.inputs++); }
  void weight(Chunk& chunk) { add(chunk, ActionKind::kBackwardWeight, chunk.weights++); }
  void add(const Chunk& chunk, ActionKind kind, int microbatch) {
    if (microbatch < real_) row_.add(chunk.stage, kind, microbatch);
  }

  RowWriter row_;
  int rank_;
  int ranks_;
  int real_;  // micro-batches; the others are holes
  Chunk near_;
  Chunk far_;
};

}  // namespace

Schedule zero_bubble_v(int num_ranks, int num_microbatches) {
  Schedule schedule = empty_schedule(StagePlacement::kV, num_ranks, 2, num_microbatches);
  for (int rank = 0; rank < num_ranks; ++rank) Row(schedule, rank, num_ranks).write();
  return schedule;
}

}  // namespace quatrain
