// SPDX-License-Identifier: Apache-2.0
// Zero bubble by hand (Qi et al., arXiv:2401.10241, sections 2 and 3): the weight half of a
// backward waits until nothing else can run. H1 holds as many micro-batches as 1F1B's first rank,
// H2 twice as many, and has no bubble.
#include <algorithm>
#include <optional>

#include "quatrain/schedule/build.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

// H2 at unit times. Until its forwards are used up a rank's row is fixed; then it runs a backward
// when one is ready and a weight half when not.
class H2 {
 public:
  H2(int num_ranks, int num_microbatches)
      : ranks_(num_ranks),
        microbatches_(num_microbatches),
        schedule_(one_stage_a_rank(num_ranks, num_microbatches)),
        state_(static_cast<std::size_t>(num_ranks)) {
    for (int rank = 0; rank < ranks_; ++rank) state(rank).lead = 2 * rank;
  }

  Schedule run() {
    for (int left = 3 * ranks_ * microbatches_; left > 0;) {
      const std::vector<State> before = state_;  // what other ranks have done when a slot begins
      for (int rank = 0; rank < ranks_; ++rank) {
        const std::optional<ActionKind> kind = next(rank, before);
        if (!kind) continue;
        perform(rank, *kind);
        --left;
      }
    }
    return std::move(schedule_);
  }

 private:
  struct State {
    int forwards = 0, inputs = 0, weights = 0;
    int lead = 0;  // of input halves over weight halves, while forwards last
    ActionKind last = ActionKind::kForward;
  };
  State& state(int rank) { return state_[static_cast<std::size_t>(rank)]; }

  std::optional<ActionKind> next(int rank, const std::vector<State>& before) {
    const auto r = static_cast<std::size_t>(rank);
    const State& now = before[r];
    const bool forward_ready = rank == 0 || before[r - 1].forwards > now.forwards;
    const bool input_ready =
        now.inputs < now.forwards && (rank + 1 == ranks_ || before[r + 1].inputs > now.inputs);
    if (now.forwards < microbatches_) {
      const ActionKind fixed = in_turn(rank, now);
      if (fixed == ActionKind::kForward && !forward_ready) return std::nullopt;
      if (fixed == ActionKind::kBackwardInput && !input_ready) return std::nullopt;
      return fixed;
    }
    if (input_ready) return ActionKind::kBackwardInput;
    if (now.weights < now.inputs) return ActionKind::kBackwardWeight;
    return std::nullopt;
  }

  ActionKind in_turn(int rank, const State& now) const {
    const int warmup = std::min(microbatches_, 2 * (ranks_ - rank) - 1);
    if (now.forwards < warmup) return ActionKind::kForward;
    switch (now.last) {
      case ActionKind::kForward:
        return ActionKind::kBackwardInput;
      case ActionKind::kBackwardInput:
        return now.inputs - now.weights > now.lead ? ActionKind::kBackwardWeight
                                                   : ActionKind::kForward;
      default:
        return ActionKind::kForward;
    }
  }

  void perform(int rank, ActionKind kind) {
    State& now = state(rank);
    int& count = kind == ActionKind::kForward         ? now.forwards
                 : kind == ActionKind::kBackwardInput ? now.inputs
                                                      : now.weights;
    RowWriter(schedule_, rank).add(rank, kind, count);
    ++count;
    now.last = kind;
  }

  int ranks_;
  int microbatches_;
  Schedule schedule_;
  std::vector<State> state_;
};

}  // namespace

Schedule zero_bubble_h1(int num_ranks, int num_microbatches) {
  Schedule schedule = one_stage_a_rank(num_ranks, num_microbatches);
  for (int rank = 0; rank < num_ranks; ++rank) {
    RowWriter row(schedule, rank);
    const int warmup = std::min(num_microbatches, num_ranks - 1 - rank);
    for (int m = 0; m < warmup; ++m) row.forward(rank, m);
    for (int m = 0; m < num_microbatches; ++m) {
      if (m + warmup < num_microbatches) row.forward(rank, m + warmup);
      row.input(rank, m);
      if (m >= rank) row.weight(rank, m - rank);
    }
    for (int m = std::max(0, num_microbatches - rank); m < num_microbatches; ++m) {
      row.weight(rank, m);
    }
  }
  return schedule;
}

Schedule zero_bubble_h2(int num_ranks, int num_microbatches) {
  return H2(num_ranks, num_microbatches).run();
}

}  // namespace quatrain
