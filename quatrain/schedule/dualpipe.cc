// SPDX-License-Identifier: Apache-2.0
// DualPipe (DeepSeek-AI, arXiv:2412.19437, section 3.2.1) feeds micro-batches from both ends of the
// pipeline into two replicas of the parameters; DualPipe-V (Sea AI Lab's "cut in half") folds it,
// so that a rank holds the two halves of a V. One program of eight steps makes both. A forward and
// a backward that may overlap (expert all-to-all under computation) are written as a pair.
#include <deque>

#include "quatrain/schedule/build.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

// What enters at this rank's end first (`near`), and what comes back from the other end (`far`).
struct Side {
  int stage;
  int replica;
  int first_microbatch;
  int forwards = 0, backwards = 0;
};

struct Program {
  int half;          // ranks on one side of the fold
  int depth;         // of this rank, 0 at the end
  int microbatches;  // of each side
  int stages;        // a micro-batch passes
};

class Row {
 public:
  Row(std::vector<Action>& row, const Program& program, Side near, Side far)
      : row_(row), p_(program), near_(near), far_(far) {}

  void write() {
    const int below = p_.half - p_.depth - 1, above = p_.depth + 1;
    for (int i = 0; i < 2 * below; ++i) add(forward(near_));
    for (int i = 0; i < above; ++i) {
      add(forward(near_));
      add(forward(far_));
    }
    for (int i = 0; i < below; ++i) {
      input(far_);
      weight();
      add(forward(far_));
    }
    for (int i = 0; i < p_.microbatches - p_.stages + above; ++i) steady(i == 0 && below == 0);
    for (int i = 0; i < below; ++i) {
      add(backward(far_));
      pair(far_, near_);
    }
    drain(above);
    for (int i = 0; i < below; ++i) {
      weight();
      input(near_);
    }
    for (int i = 0; i < above; ++i) weight();
  }

 private:
  // At the fold the first forward feeds the backward beside it: these two cannot overlap.
  void steady(bool first_at_fold) {
    if (first_at_fold) {
      add(forward(near_));
      add(backward(far_));
    } else {
      pair(near_, far_);
    }
    pair(far_, near_);
  }

  // Backwards are split in the second half of this step: their weight halves fill what follows.
  void drain(int rounds) {
    for (int i = 0; i < 2 * rounds; ++i) {
      Side& side = i % 2 == 0 ? far_ : near_;
      if (i >= rounds) {
        input(side);
      } else {
        add(backward(side));
      }
    }
  }

  static Action on(const Side& side, ActionKind kind, int index) {
    Action action = compute(side.stage, kind, side.first_microbatch + index);
    action.replica = side.replica;
    return action;
  }
  Action forward(Side& side) { return on(side, ActionKind::kForward, side.forwards++); }
  Action backward(Side& side) { return on(side, ActionKind::kBackward, side.backwards++); }
  void add(const Action& action) { row_.push_back(action); }

  void pair(Side& forward_side, Side& backward_side) {
    Action action = forward(forward_side);
    action.overlap = std::make_shared<const Action>(backward(backward_side));
    add(action);
  }
  void input(Side& side) {
    add(on(side, ActionKind::kBackwardInput, side.backwards));
    weights_.push_back(on(side, ActionKind::kBackwardWeight, side.backwards++));
  }
  void weight() {
    add(weights_.front());
    weights_.pop_front();
  }

  std::vector<Action>& row_;
  Program p_;
  Side near_;
  Side far_;
  std::deque<Action> weights_;
};

}  // namespace

Schedule dualpipe(int num_ranks, int num_microbatches) {
  CHECK(num_ranks % 2 == 0 && num_microbatches % 2 == 0 && num_microbatches >= 2 * num_ranks,
        "{} ranks, {} micro-batches", num_ranks, num_microbatches);
  Schedule schedule = empty_schedule(StagePlacement::kDual, num_ranks, 1, num_microbatches);
  const int each = num_microbatches / 2;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int mirror = num_ranks - 1 - rank;
    const Side down{rank, 0, 0}, up{mirror, 1, each};
    const bool upper_half = rank < mirror;
    const Program program{num_ranks / 2, upper_half ? rank : mirror, each, num_ranks};
    Row(schedule.per_rank[static_cast<std::size_t>(rank)], program, upper_half ? down : up,
        upper_half ? up : down)
        .write();
  }
  return schedule;
}

Schedule dualpipe_v(int num_ranks, int num_microbatches) {
  CHECK(num_microbatches >= 2 * num_ranks, "{} ranks, {} micro-batches", num_ranks,
        num_microbatches);
  Schedule schedule = empty_schedule(StagePlacement::kV, num_ranks, 2, num_microbatches);
  for (int rank = 0; rank < num_ranks; ++rank) {
    const Program program{num_ranks, rank, num_microbatches, 2 * num_ranks};
    Row(schedule.per_rank[static_cast<std::size_t>(rank)], program, {rank, 0, 0},
        {2 * num_ranks - 1 - rank, 0, 0})
        .write();
  }
  return schedule;
}

}  // namespace quatrain
