// SPDX-License-Identifier: Apache-2.0
// The greedy of Zero Bubble's section 6 (arXiv:2401.10241). A micro-batch travels four legs along
// the V: forward down the ranks and up again, backward down (from the last stage, on rank 0) and
// up. Weight halves go where a rank would idle or its memory is full.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/schedule/build.h"
#include "quatrain/schedule/zb_auto.h"

namespace quatrain {
namespace {

enum Leg : std::size_t { kForwardDown, kForwardUp, kBackwardDown, kBackwardUp, kLegs };

bool is_down(Leg leg) { return leg == kForwardDown || leg == kBackwardDown; }
bool is_forward(Leg leg) { return leg == kForwardDown || leg == kForwardUp; }

struct VLimits {
  int num_ranks = 1;
  int num_microbatches = 1;
  std::vector<StageDurations> durations;  // [stage]
  StashDeltas stash;
  double memory = 0.0;  // of each rank
};

struct VChoices {
  bool fill_before_backward;  // a weight half in a gap that is shorter than itself
  bool fill_before_forward;
};

struct VRank {
  std::array<std::vector<double>, kLegs> ends;  // [leg][microbatch]
  std::deque<std::pair<int, int>> pending;      // weight halves: stage, micro-batch
  double free = 0.0;
  double stash = 0.0;
  double idle = 0.0;  // since its first forward
  std::vector<Action> row;
  int count(Leg leg) const { return static_cast<int>(ends[leg].size()); }
};

class VGreedy {
 public:
  // `allowed`: [rank] idle time that an earlier run had, and this one may use where that one was
  // better than the worst rank; empty: none.
  VGreedy(const VLimits& limits, VChoices choices, std::vector<double> allowed)
      : limits_(limits),
        choices_(choices),
        allowed_(std::move(allowed)),
        ranks_(static_cast<std::size_t>(limits.num_ranks)) {}

  // False where memory does not suffice, or an order comes up that data does not allow.
  bool run() {
    first_micro_batches();
    level_forwards();
    for (int turn = 0; turn < 2 * microbatches() && fits_; ++turn) {
      backwards();
      forwards();
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      while (!ranks_[r].pending.empty()) place_weight(r);
      fits_ = fits_ && ranks_[r].count(kBackwardUp) == microbatches();
    }
    return fits_;
  }

  double most_idle() const {
    double most = 0.0;
    for (const VRank& rank : ranks_) most = std::max(most, rank.idle);
    return most;
  }
  std::vector<double> idle() const {
    std::vector<double> result;
    for (const VRank& rank : ranks_) result.push_back(rank.idle);
    return result;
  }
  std::vector<Action> take_row(std::size_t r) { return std::move(ranks_[r].row); }

 private:
  int microbatches() const { return limits_.num_microbatches; }
  std::size_t last() const { return ranks_.size() - 1; }
  int stage(std::size_t r, Leg leg) const {
    const int rank = static_cast<int>(r);
    const bool first_chunk = leg == kForwardDown || leg == kBackwardUp;
    return first_chunk ? rank : 2 * limits_.num_ranks - 1 - rank;
  }
  const StageDurations& durations(int of_stage) const {
    return limits_.durations[static_cast<std::size_t>(of_stage)];
  }

  // The rank before on this leg; none at its start.
  std::optional<std::size_t> before(std::size_t r, Leg leg) const {
    if (is_down(leg)) return r > 0 ? std::optional(r - 1) : std::nullopt;
    return r < last() ? std::optional(r + 1) : std::nullopt;
  }
  // Whether the next micro-batch of this leg has left the rank before, or the leg before.
  bool is_there(std::size_t r, Leg leg) const {
    const int m = ranks_[r].count(leg);
    if (m >= microbatches()) return false;
    if (const auto from = before(r, leg)) return ranks_[*from].count(leg) > m;
    return leg == kForwardDown || ranks_[r].count(static_cast<Leg>(leg - 1)) > m;
  }
  std::optional<double> arrival(std::size_t r, Leg leg) const {
    const auto from = before(r, leg);
    if (!from || !is_there(r, leg)) return std::nullopt;
    const StageDurations& sender = durations(stage(*from, leg));
    const auto m = static_cast<std::size_t>(ranks_[r].count(leg));
    return ranks_[*from].ends[leg][m] +
           (is_forward(leg) ? sender.send_forward : sender.send_backward);
  }

  bool overflows(std::size_t r, double more) const {
    return ranks_[r].stash + more > limits_.memory;
  }

  void place(std::size_t r, Leg leg) {
    VRank& rank = ranks_[r];
    const double more = is_forward(leg) ? limits_.stash.forward : limits_.stash.input;
    fits_ = fits_ && is_there(r, leg) && !overflows(r, more);
    if (!fits_) return;
    const int of_stage = stage(r, leg), m = rank.count(leg);
    const double begin = std::max(rank.free, arrival(r, leg).value_or(0.0));
    if (rank.count(kForwardDown) > 0) rank.idle += begin - rank.free;
    const StageDurations& times = durations(of_stage);
    rank.free = begin + (is_forward(leg) ? times.forward : times.input);
    rank.stash += more;
    rank.ends[leg].push_back(rank.free);
    const ActionKind kind = is_forward(leg) ? ActionKind::kForward : ActionKind::kBackwardInput;
    rank.row.push_back(compute(of_stage, kind, m));
    if (!is_forward(leg)) rank.pending.emplace_back(of_stage, m);
  }

  void place_weight(std::size_t r) {
    VRank& rank = ranks_[r];
    const auto [of_stage, m] = rank.pending.front();
    rank.pending.pop_front();
    rank.free += durations(of_stage).weight;
    rank.stash += limits_.stash.weight;
    rank.row.push_back(compute(of_stage, ActionKind::kBackwardWeight, m));
  }

  void make_room(std::size_t r, double more) {
    while (overflows(r, more) && fits_) {
      fits_ = !ranks_[r].pending.empty();
      if (fits_) place_weight(r);
    }
  }

  // The first micro-batch down and up; ranks that wait for its return take further ones down.
  void first_micro_batches() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) place(r, kForwardDown);
    for (std::size_t r = ranks_.size(); r-- > 0 && fits_;) {
      while (fits_ && another_fits_before_the_return(r)) {
        for (std::size_t j = 0; j <= r; ++j) place(j, kForwardDown);
      }
      place(r, kForwardUp);
    }
  }
  bool another_fits_before_the_return(std::size_t r) const {
    const std::optional<double> returns = arrival(r, kForwardUp);
    const double owed = limits_.stash.forward * (2.0 + 2.0 * static_cast<double>(r));
    return returns && !overflows(r, owed) && ranks_[r].count(kForwardDown) < microbatches() &&
           ranks_[r].free + durations(stage(r, kForwardDown)).forward <= *returns;
  }

  // No rank has fewer forwards than the one before it, down and up in turns.
  void level_forwards() {
    Leg leg = kForwardDown;
    for (std::size_t r = 1; r < ranks_.size(); ++r) {
      while (fits_ && behind(r)) {
        for (std::size_t j = ranks_.size(); j-- > r;) {
          if (ranks_[j].count(leg) < microbatches()) place(j, leg);
        }
        leg = leg == kForwardDown ? kForwardUp : kForwardDown;
      }
    }
  }
  bool behind(std::size_t r) const {
    const VRank &rank = ranks_[r], &above = ranks_[r - 1];
    const auto all = [](const VRank& of) { return of.count(kForwardDown) + of.count(kForwardUp); };
    const int up = rank.count(kForwardUp), up_above = above.count(kForwardUp);
    return all(rank) < all(above) || (up <= up_above && up_above < microbatches());
  }

  Leg next_backward(std::size_t r) const {
    const VRank& rank = ranks_[r];
    if (rank.count(kBackwardUp) >= rank.count(kBackwardDown)) return kBackwardDown;
    const bool up =
        r == last() || is_there(r, kBackwardUp) || rank.count(kBackwardDown) >= microbatches();
    return up ? kBackwardUp : kBackwardDown;
  }

  void backwards() {
    std::vector<Leg> legs;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      make_room(r, limits_.stash.input);
      legs.push_back(next_backward(r));
    }
    for (std::size_t r = ranks_.size(); r-- > 0;) {
      if (legs[r] == kBackwardUp) turn(r, kBackwardUp, true);
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (legs[r] == kBackwardDown) turn(r, kBackwardDown, choices_.fill_before_backward);
    }
  }

  std::optional<Leg> next_forward(std::size_t r) const {
    const VRank& rank = ranks_[r];
    if (rank.count(kForwardUp) >= microbatches()) return std::nullopt;
    if (rank.count(kForwardUp) >= rank.count(kForwardDown)) return kForwardDown;
    if (r == last() || is_there(r, kForwardUp)) return kForwardUp;
    if (is_there(r, kForwardDown)) return kForwardDown;
    return std::nullopt;
  }

  void forwards() {
    for (std::size_t r = 0; r < ranks_.size() && fits_; ++r) {
      const std::optional<Leg> leg = next_forward(r);
      if (!leg) continue;
      make_room(r, limits_.stash.forward);
      turn(r, *leg, choices_.fill_before_forward);
    }
  }

  void turn(std::size_t r, Leg leg, bool fill_small_gaps) {
    if (!fits_) return;
    if (const std::optional<double> time = arrival(r, leg)) fill_until(r, *time, fill_small_gaps);
    place(r, leg);
  }

  void fill_until(std::size_t r, double time, bool fill_small_gaps) {
    VRank& rank = ranks_[r];
    const auto weight = [&] { return durations(rank.pending.front().first).weight; };
    while (!rank.pending.empty() && rank.free + weight() <= time) place_weight(r);
    if (rank.pending.empty() || !fill_small_gaps) return;
    if (time - rank.free > idle_that_costs_nothing(r)) place_weight(r);
  }
  double idle_that_costs_nothing(std::size_t r) const {
    double most = most_idle();
    if (!allowed_.empty()) {
      most = std::max(most, *std::max_element(allowed_.begin(), allowed_.end()) - allowed_[r]);
    }
    return most - ranks_[r].idle;
  }

  const VLimits& limits_;
  VChoices choices_;
  std::vector<double> allowed_;
  std::vector<VRank> ranks_;
  bool fits_ = true;
};

// A run, and again with its idle times allowed, as long as that helps.
std::optional<VGreedy> best_run(const VLimits& limits, VChoices choices) {
  std::optional<VGreedy> best;
  std::vector<double> allowed;
  for (;;) {
    VGreedy greedy(limits, choices, allowed);
    if (!greedy.run() || (best && greedy.most_idle() >= best->most_idle())) return best;
    allowed = greedy.idle();
    best.emplace(std::move(greedy));
  }
}

VLimits v_limits(int num_ranks, int num_microbatches, const ScheduleCosts& costs) {
  VLimits limits;
  limits.num_ranks = num_ranks;
  limits.num_microbatches = std::max(num_microbatches, 2 * num_ranks);
  limits.durations = costs.durations;
  const auto stages = static_cast<std::size_t>(2 * num_ranks);
  if (limits.durations.empty()) limits.durations.assign(stages, to_stage(costs.times, 0.5));
  CHECK(limits.durations.size() == stages, "durations of {} stages for {}", costs.durations.size(),
        stages);
  limits.stash = costs.stash;
  const double limit = costs.memory_limit > 0.0 ? costs.memory_limit : 1.0;
  limits.memory = limit * 2.0 * num_ranks * costs.stash.forward;
  return limits;
}

}  // namespace

Schedule zb_v_auto(int num_ranks, int num_microbatches, const ScheduleCosts& costs) {
  Schedule schedule = empty_schedule(StagePlacement::kV, num_ranks, 2, num_microbatches);
  const VLimits limits = v_limits(num_ranks, num_microbatches, costs);
  std::optional<VGreedy> best;
  for (int i = 0; i < 4; ++i) {
    std::optional<VGreedy> run = best_run(limits, {(i & 2) == 0, (i & 1) == 0});
    if (run && (!best || run->most_idle() < best->most_idle())) best.emplace(std::move(*run));
  }
  if (!best) {
    throw ConfigError(
        fmt::format("no zero-bubble V of {} ranks fits a memory limit of {}; use 1 "
                    "or more, or v-half or v-min",
                    num_ranks, costs.memory_limit));
  }
  for (std::size_t r = 0; r < schedule.per_rank.size(); ++r) {
    schedule.per_rank[r] = best->take_row(r);
    std::erase_if(schedule.per_rank[r],
                  [&](const Action& action) { return *action.microbatch >= num_microbatches; });
  }
  return schedule;
}

}  // namespace quatrain
