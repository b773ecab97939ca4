// SPDX-License-Identifier: Apache-2.0
// The greedy of the paper's appendix B: micro-batch by micro-batch, first the forwards from the
// first rank to the last, then the input halves from the last to the first; weight halves go where
// a rank would idle or its memory is full. Three choices that no rule settles are all tried.
#include "quatrain/schedule/zb_auto.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/schedule/build.h"

namespace quatrain {
namespace {

struct Choices {
  bool warm_up_past_first_input;  // a warm-up forward may make the first input half wait
  bool input_before_forward;      // a rank two ahead of the next leaves a forward out
  bool weight_in_any_gap;         // even in gaps that would cost the longest rank nothing
};

struct Limits {
  std::vector<StageDurations> durations;  // [rank]
  StashDeltas stash;
  double memory = 0.0;  // of each rank
};

struct Rank {
  int forwards = 0, inputs = 0, weights = 0;  // how many are placed
  double free = 0.0;                          // when the last one ends
  double stash = 0.0;
  double idle = 0.0;                           // since its first forward
  std::vector<double> forward_end, input_end;  // [microbatch]
  std::vector<Action> row;
  bool weight_pending() const { return weights < inputs; }
};

class Greedy {
 public:
  Greedy(int num_microbatches, const Limits& limits, Choices choices)
      : num_microbatches_(num_microbatches),
        limits_(limits),
        choices_(choices),
        ranks_(limits.durations.size()) {}

  // False where memory does not suffice.
  bool run() {
    warm_up();
    for (int m = 1; m < num_microbatches_ && fits_; ++m) {
      const std::vector<bool> wanted = forwards_wanted();
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        if (wanted[r]) turn(r, ActionKind::kForward);
      }
      for (std::size_t r = ranks_.size(); r-- > 0;) turn(r, ActionKind::kBackwardInput);
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) place_all_weights(r);
    return fits_;
  }

  double longest() const {
    double result = 0.0;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const double begin = ranks_[r].forward_end[0] - limits_.durations[r].forward;
      result = std::max(result, ranks_[r].free - begin);
    }
    return result;
  }

  std::vector<Action> take_row(std::size_t r) { return std::move(ranks_[r].row); }

 private:
  // When the neighbour's result is here; nothing for the ends of the pipeline.
  std::optional<double> arrival(std::size_t r, ActionKind kind) const {
    if (kind == ActionKind::kForward && r > 0) {
      const auto m = static_cast<std::size_t>(ranks_[r].forwards);
      return ranks_[r - 1].forward_end[m] + limits_.durations[r - 1].send_forward;
    }
    if (kind == ActionKind::kBackwardInput && r + 1 < ranks_.size()) {
      const auto m = static_cast<std::size_t>(ranks_[r].inputs);
      return ranks_[r + 1].input_end[m] + limits_.durations[r + 1].send_backward;
    }
    return std::nullopt;
  }

  double most_idle() const {
    double most = 0.0;
    for (const Rank& rank : ranks_) most = std::max(most, rank.idle);
    return most;
  }

  bool overflows(std::size_t r, double more) const {
    return ranks_[r].stash + more > limits_.memory;
  }

  void place_forward(std::size_t r) {
    place(r, ActionKind::kForward, ranks_[r].forwards, limits_.durations[r].forward,
          limits_.stash.forward);
    ++ranks_[r].forwards;
    ranks_[r].forward_end.push_back(ranks_[r].free);
  }
  void place_input(std::size_t r) {
    place(r, ActionKind::kBackwardInput, ranks_[r].inputs, limits_.durations[r].input,
          limits_.stash.input);
    ++ranks_[r].inputs;
    ranks_[r].input_end.push_back(ranks_[r].free);
  }
  void place_weight(std::size_t r) {
    place(r, ActionKind::kBackwardWeight, ranks_[r].weights, limits_.durations[r].weight,
          limits_.stash.weight);
    ++ranks_[r].weights;
  }
  void place_all_weights(std::size_t r) {
    while (ranks_[r].weight_pending()) place_weight(r);
  }
  void place(std::size_t r, ActionKind kind, int microbatch, double duration, double stash) {
    Rank& rank = ranks_[r];
    const double begin = std::max(rank.free, arrival(r, kind).value_or(0.0));
    if (rank.forwards > 0) rank.idle += begin - rank.free;
    rank.free = begin + duration;
    rank.stash += stash;
    rank.row.push_back(compute(static_cast<int>(r), kind, microbatch));
  }

  // Forwards until the first input half comes back, then that one, on every rank.
  void warm_up() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) place_forward(r);
    std::vector<int> extra = extra_forwards();
    for (std::size_t r = 1; r < ranks_.size(); ++r) {  // fewer than the rank before, to be fed
      while (extra[r] > 0 && extra[r] >= extra[r - 1] && 1 + extra[r] < num_microbatches_) {
        --extra[r];
      }
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      for (int i = 0; i < extra[r]; ++i) place_forward(r);
    }
    for (std::size_t r = ranks_.size(); r-- > 0;) place_input(r);
  }

  // How many more fit each rank's memory and its wait for the first input half.
  std::vector<int> extra_forwards() const {
    std::vector<int> extra(ranks_.size(), 0);
    double input_end = ranks_.back().free + limits_.durations.back().input;
    for (std::size_t r = ranks_.size() - 1; r-- > 0;) {
      const double arrives = input_end + limits_.durations[r + 1].send_backward;
      const double duration = limits_.durations[r].forward;
      double stash = ranks_[r].stash, time = ranks_[r].free;
      while (1 + extra[r] < num_microbatches_ && stash + limits_.stash.forward <= limits_.memory) {
        const bool late =
            choices_.warm_up_past_first_input ? time + duration > arrives : time >= arrives;
        if (late) break;
        stash += limits_.stash.forward;
        time += duration;
        ++extra[r];
      }
      input_end = std::max(time, arrives) + limits_.durations[r].input;
    }
    return extra;
  }

  // A rank that leaves a forward out makes those before it do so too.
  std::vector<bool> forwards_wanted() const {
    std::vector<bool> wanted(ranks_.size());
    for (std::size_t r = ranks_.size(); r-- > 0;) {
      wanted[r] = ranks_[r].forwards < num_microbatches_ && !input_is_better(r) &&
                  (r + 1 == ranks_.size() || wanted[r + 1]);
    }
    return wanted;
  }

  bool input_is_better(std::size_t r) const {
    if (!choices_.input_before_forward || r + 1 == ranks_.size()) return false;
    const Rank &rank = ranks_[r], &next = ranks_[r + 1];
    if (rank.forwards < next.forwards + 2) return false;
    const StageDurations& of_next = limits_.durations[r + 1];
    const double input_arrives =
        next.free + of_next.forward + of_next.input + of_next.send_backward;
    if (rank.free >= input_arrives) return true;
    if (rank.free + limits_.durations[r].forward + time_to_make_room(r) <= input_arrives) {
      return false;
    }
    return input_arrives - rank.free <= most_idle() - rank.idle;
  }

  // Of the weight halves that must run before another forward fits.
  double time_to_make_room(std::size_t r) const {
    const Rank& rank = ranks_[r];
    double stash = rank.stash + limits_.stash.forward, time = 0.0;
    for (int w = rank.weights; stash > limits_.memory && w < rank.inputs; ++w) {
      time += limits_.durations[r].weight;
      stash += limits_.stash.weight;
    }
    return time;
  }

  void turn(std::size_t r, ActionKind kind) {
    const bool forward = kind == ActionKind::kForward;
    const double more = forward ? limits_.stash.forward : limits_.stash.input;
    while (overflows(r, more) && fits_) {
      fits_ = ranks_[r].weight_pending();
      if (fits_) place_weight(r);
    }
    if (!fits_) return;
    if (const std::optional<double> time = arrival(r, kind)) fill_until(r, *time);
    if (forward) {
      place_forward(r);
    } else {
      if (r == 0 && ranks_[r].forwards == num_microbatches_) place_all_weights(r);
      place_input(r);
    }
  }

  void fill_until(std::size_t r, double time) {
    Rank& rank = ranks_[r];
    while (rank.weight_pending() && rank.free + limits_.durations[r].weight <= time) {
      place_weight(r);
    }
    if (!rank.weight_pending() || rank.free >= time) return;
    const bool costs_nothing = time - rank.free <= most_idle() - rank.idle;
    if (!costs_nothing || choices_.weight_in_any_gap) place_weight(r);
  }

  int num_microbatches_;
  const Limits& limits_;
  Choices choices_;
  std::vector<Rank> ranks_;
  bool fits_ = true;
};

Limits limits_of(int num_ranks, const ScheduleCosts& costs) {
  const auto n = static_cast<std::size_t>(num_ranks);
  Limits limits;
  limits.durations = costs.durations;
  if (limits.durations.empty()) limits.durations.assign(n, to_stage(costs.times));
  CHECK(limits.durations.size() == n, "durations of {} stages for {} ranks",
        limits.durations.size(), n);
  limits.stash = costs.stash;
  const double limit = costs.memory_limit > 0.0 ? costs.memory_limit : 2.0;
  limits.memory = limit * num_ranks * costs.stash.forward;
  if (limits.memory < costs.stash.forward) {
    throw ConfigError(fmt::format(
        "a memory limit of {} x {} ranks holds less than the activations of one micro-batch; use "
        "{:.3g} or more",
        costs.memory_limit, num_ranks, 1.0 / num_ranks));
  }
  return limits;
}

}  // namespace

Schedule zb_auto(int num_ranks, int num_microbatches, const ScheduleCosts& costs) {
  Schedule schedule = one_stage_a_rank(num_ranks, num_microbatches);
  const Limits limits = limits_of(num_ranks, costs);
  std::optional<Greedy> best;
  for (int i = 0; i < 8; ++i) {
    const Choices choices{(i & 4) == 0, (i & 2) == 0, (i & 1) == 0};
    Greedy greedy(num_microbatches, limits, choices);
    if (!greedy.run()) continue;
    if (!best || greedy.longest() < best->longest()) best.emplace(std::move(greedy));
  }
  if (!best) {
    throw ConfigError(fmt::format(
        "no zero-bubble schedule of {} ranks and {} micro-batches fits a memory limit of {}",
        num_ranks, num_microbatches, costs.memory_limit));
  }
  for (std::size_t r = 0; r < schedule.per_rank.size(); ++r) {
    schedule.per_rank[r] = best->take_row(r);
  }
  return schedule;
}

}  // namespace quatrain
