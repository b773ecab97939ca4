// SPDX-License-Identifier: Apache-2.0
// Proves a schedule: every micro-batch passes every stage once each way, on the rank that holds the
// stage, in an order that the data allows, and no rank waits for ever. Dependencies:
//   F(s) after F(s-1); I or B(s) after F(s) and after I or B(s+1); W(s) after I(s);
//   where messages are written out, RECV after its SEND, and the receiver's half after the RECV.
#include <fmt/format.h>

#include <array>
#include <optional>
#include <utility>

#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

struct Place {
  int rank = -1;
  int slot = -1;
  bool exists() const { return rank >= 0; }
};

struct Key {
  int replica;
  int stage;
  ActionKind kind;
  int microbatch;
};

constexpr int kTracked = static_cast<int>(ActionKind::kUnshard);  // computation and messages

bool tracked(ActionKind kind) { return static_cast<int>(kind) < kTracked; }

std::string to_text(const Key& key) {
  Action action;
  action.stage = key.stage;
  action.kind = key.kind;
  action.microbatch = key.microbatch;
  action.replica = key.replica;
  return to_string(action);
}

template <class F>
void for_each_action(const Schedule& schedule, F f) {
  for (std::size_t rank = 0; rank < schedule.per_rank.size(); ++rank) {
    for (std::size_t slot = 0; slot < schedule.per_rank[rank].size(); ++slot) {
      const Action* action = &schedule.per_rank[rank][slot];
      for (; action != nullptr; action = action->overlap.get()) {
        f(*action, Place{static_cast<int>(rank), static_cast<int>(slot)});
      }
    }
  }
}

class Checker {
 public:
  explicit Checker(const Schedule& schedule) : schedule_(schedule) {}

  Problems run() {
    if (!shape_is_sound()) return std::move(problems_);
    place_actions();
    find_missing();
    find_orders();
    find_deadlock();
    return std::move(problems_);
  }

 private:
  void report(std::string where, std::string what, std::string hint = {}) {
    problems_.push_back({std::move(where), std::move(what), std::move(hint)});
  }
  static std::string at(Place place) {
    return fmt::format("rank {}, action {}", place.rank, place.slot);
  }

  int replicas() const { return static_cast<int>(schedule_.rank_of_stage.size()); }
  int ranks() const { return static_cast<int>(schedule_.per_rank.size()); }
  int rank_of(int replica, int stage) const {
    return schedule_
        .rank_of_stage[static_cast<std::size_t>(replica)][static_cast<std::size_t>(stage)];
  }

  bool shape_is_sound() {
    const int stages = schedule_.num_stages;
    const int microbatches = schedule_.num_microbatches;
    if (stages < 1 || microbatches < 1 || replicas() < 1 || ranks() < 1) {
      report("schedule",
             fmt::format("{} stages, {} micro-batches, {} replicas, {} ranks", stages, microbatches,
                         replicas(), ranks()),
             "each is 1 or more");
      return false;
    }
    std::size_t actions = 0;
    for (const auto& row : schedule_.per_rank) actions += 2 * row.size();
    if (static_cast<std::size_t>(microbatches) > actions) {
      report("schedule",
             fmt::format("{} micro-batches but only {} actions at most", microbatches, actions));
    }
    for (int replica = 0; replica < replicas(); ++replica) {
      const auto& row = schedule_.rank_of_stage[static_cast<std::size_t>(replica)];
      if (row.size() != static_cast<std::size_t>(stages)) {
        report("schedule",
               fmt::format("replica {} places {} of {} stages", replica, row.size(), stages));
        continue;
      }
      for (int stage = 0; stage < stages; ++stage) {
        const int rank = rank_of(replica, stage);
        if (rank >= 0 && rank < ranks()) continue;
        report("schedule",
               fmt::format("stage {} is placed on rank {} of {}", stage, rank, ranks()));
      }
    }
    return problems_.empty();
  }

  std::size_t index(const Key& key) const {
    const auto of = [](int a, int n, int b) {
      return static_cast<std::size_t>(a) * static_cast<std::size_t>(n) +
             static_cast<std::size_t>(b);
    };
    const std::size_t cell = of(key.replica, schedule_.num_stages, key.stage);
    return (cell * kTracked + static_cast<std::size_t>(key.kind)) *
               static_cast<std::size_t>(schedule_.num_microbatches) +
           static_cast<std::size_t>(key.microbatch);
  }
  Place find(const Key& key) const { return places_[index(key)]; }

  bool in_range(const Action& action, Place place) {
    const bool stage_ok = action.stage >= 0 && action.stage < schedule_.num_stages &&
                          action.replica >= 0 && action.replica < replicas();
    if (!stage_ok) {
      report(at(place), fmt::format("{} is of no stage of the schedule", to_string(action)),
             fmt::format("stages are 0 to {}", schedule_.num_stages - 1));
      return false;
    }
    if (!tracked(action.kind)) return true;
    if (action.microbatch && *action.microbatch >= 0 &&
        *action.microbatch < schedule_.num_microbatches) {
      return true;
    }
    report(at(place), fmt::format("{} is of no micro-batch of the schedule", to_string(action)),
           fmt::format("micro-batches are 0 to {}", schedule_.num_microbatches - 1));
    return false;
  }

  // Fills places_; finds actions of the wrong rank and repeated ones.
  void place_actions() {
    places_.resize(static_cast<std::size_t>(replicas()) *
                   static_cast<std::size_t>(schedule_.num_stages) * kTracked *
                   static_cast<std::size_t>(schedule_.num_microbatches));
    std::vector<Place> steps(static_cast<std::size_t>(replicas() * schedule_.num_stages));
    for_each_action(schedule_, [&](const Action& action, Place place) {
      if (!in_range(action, place)) return;
      const int home = rank_of(action.replica, action.stage);
      if (home != place.rank) {
        report(at(place), fmt::format("{} runs on rank {} but its stage is on rank {}",
                                      to_string(action), place.rank, home));
      }
      const auto cell =
          static_cast<std::size_t>(action.replica * schedule_.num_stages + action.stage);
      Place* first = nullptr;
      if (tracked(action.kind)) {
        first = &places_[index({action.replica, action.stage, action.kind, *action.microbatch})];
      } else if (action.kind == ActionKind::kOptimizerStep) {
        first = &steps[cell];
      } else {
        return;
      }
      if (first->exists()) {
        report(at(place), fmt::format("{} is repeated", to_string(action)),
               fmt::format("first at {}", at(*first)));
      } else {
        *first = place;
      }
    });
    steps_ = std::move(steps);
  }

  // The replica that runs a micro-batch: the one with its first action.
  int replica_of(int microbatch) {
    int result = -1;
    for (int replica = 0; replica < replicas(); ++replica) {
      for (int stage = 0; stage < schedule_.num_stages; ++stage) {
        if (!find({replica, stage, ActionKind::kForward, microbatch}).exists()) continue;
        if (result < 0) result = replica;
        if (result == replica) continue;
        report("schedule", fmt::format("micro-batch {} runs in replicas {} and {}", microbatch,
                                       result, replica));
        return result;
      }
    }
    return std::max(result, 0);
  }

  void find_missing() {
    for (int m = 0; m < schedule_.num_microbatches; ++m) {
      const int replica = replica_of(m);
      for (int stage = 0; stage < schedule_.num_stages; ++stage) {
        const Key forward{replica, stage, ActionKind::kForward, m};
        const Key fused{replica, stage, ActionKind::kBackward, m};
        const Key input{replica, stage, ActionKind::kBackwardInput, m};
        const Key weight{replica, stage, ActionKind::kBackwardWeight, m};
        if (!find(forward).exists()) missing(forward);
        const bool halves = find(input).exists() || find(weight).exists();
        if (find(fused).exists() && halves) {
          report(at(find(fused)), fmt::format("{} and its halves both run", to_text(fused)),
                 "either B, or I and W");
        } else if (!find(fused).exists() && !halves) {
          missing(fused);
        } else if (halves && !find(input).exists()) {
          missing(input);
        } else if (halves && !find(weight).exists()) {
          missing(weight);
        }
      }
    }
  }
  void missing(const Key& key) {
    report(fmt::format("rank {}", rank_of(key.replica, key.stage)),
           fmt::format("{} is missing", to_text(key)));
  }

  // Whichever of I and B exists.
  Key backward(int replica, int stage, int microbatch) const {
    const Key fused{replica, stage, ActionKind::kBackward, microbatch};
    if (find(fused).exists()) return fused;
    return {replica, stage, ActionKind::kBackwardInput, microbatch};
  }

  // What `key` waits for; a receive stands before the neighbour's action where there is one.
  std::array<std::optional<Key>, 2> dependencies(const Key& key) const {
    const auto [r, s, kind, m] = key;
    const bool first = s == 0, last = s + 1 == schedule_.num_stages;
    switch (kind) {
      case ActionKind::kForward:
        if (first) return {};
        return {received({r, s, ActionKind::kRecvForward, m}, {r, s - 1, ActionKind::kForward, m})};
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput: {
        const Key forward{r, s, ActionKind::kForward, m};
        if (last) return {forward};
        return {forward, received({r, s, ActionKind::kRecvBackward, m}, backward(r, s + 1, m))};
      }
      case ActionKind::kBackwardWeight:
        return {Key{r, s, ActionKind::kBackwardInput, m}};
      case ActionKind::kSendForward:
        return {Key{r, s, ActionKind::kForward, m}};
      case ActionKind::kSendBackward:
        return {backward(r, s, m)};
      case ActionKind::kRecvForward:
        if (first) return {};
        return {Key{r, s - 1, ActionKind::kSendForward, m}};
      case ActionKind::kRecvBackward:
        if (last) return {};
        return {Key{r, s + 1, ActionKind::kSendBackward, m}};
      case ActionKind::kUnshard:
      case ActionKind::kReshard:
      case ActionKind::kReduceGrad:
      case ActionKind::kReduceTied:
      case ActionKind::kNormPart:
      case ActionKind::kOptimizerStep:
        return {};
    }
    return {};
  }
  Key received(const Key& message, const Key& neighbour) const {
    return find(message).exists() ? message : neighbour;
  }

  bool sound(const Action& action) const {
    return tracked(action.kind) && action.stage >= 0 && action.stage < schedule_.num_stages &&
           action.replica >= 0 && action.replica < replicas() && action.microbatch &&
           *action.microbatch >= 0 && *action.microbatch < schedule_.num_microbatches;
  }
  static Key key_of(const Action& action) {
    return {action.replica, action.stage, action.kind, *action.microbatch};
  }

  // Within one rank: what must come first comes first. Also finds messages without their other end
  // and computation after the stage's optimizer step.
  void find_orders() {
    for_each_action(schedule_, [&](const Action& action, Place place) {
      if (!sound(action)) return;
      for (const std::optional<Key>& before : dependencies(key_of(action))) {
        if (!before) continue;
        const Place other = find(*before);
        if (other.exists() && other.rank == place.rank && other.slot >= place.slot) {
          report(at(place),
                 fmt::format("{} runs before {}, which it needs", one_of(action), to_text(*before)),
                 fmt::format("that is action {}", other.slot));
        } else if (!other.exists() && is_message(action.kind)) {
          report(at(place), fmt::format("{} has no {}", one_of(action), to_text(*before)));
        }
      }
      find_end(action, place);
      const Place step =
          steps_[static_cast<std::size_t>(action.replica * schedule_.num_stages + action.stage)];
      if (step.exists() && step.rank == place.rank && step.slot < place.slot) {
        report(at(place), fmt::format("{} runs after its stage's OPTIMIZER_STEP", one_of(action)),
               fmt::format("that is action {}", step.slot));
      }
    });
  }
  static std::string one_of(const Action& action) { return to_text(key_of(action)); }
  static bool is_message(ActionKind kind) {
    return kind == ActionKind::kSendForward || kind == ActionKind::kRecvForward ||
           kind == ActionKind::kSendBackward || kind == ActionKind::kRecvBackward;
  }
  void find_end(const Action& action, Place place) {
    const bool forward = action.kind == ActionKind::kSendForward;
    if (!forward && action.kind != ActionKind::kSendBackward) return;
    const Key end{action.replica, action.stage + (forward ? 1 : -1),
                  forward ? ActionKind::kRecvForward : ActionKind::kRecvBackward,
                  *action.microbatch};
    const bool inside = end.stage >= 0 && end.stage < schedule_.num_stages;
    if (!inside || !find(end).exists()) {
      report(at(place), fmt::format("{} has no {}", one_of(action), to_text(end)));
    }
  }

  // Walks all rows together. Waits that find_missing and find_orders reported count as over.
  void find_deadlock() {
    std::vector<int> next(static_cast<std::size_t>(ranks()), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < ranks(); ++rank) {
        int& slot = next[static_cast<std::size_t>(rank)];
        while (slot < length(rank) && !blocker(rank, slot, next)) {
          ++slot;
          moved = true;
        }
      }
    }
    std::string waits;
    for (int rank = 0; rank < ranks(); ++rank) {
      const int slot = next[static_cast<std::size_t>(rank)];
      if (slot == length(rank)) continue;
      const Key key = *blocker(rank, slot, next);
      waits += fmt::format("{}rank {} waits at action {} ({}) for {} on rank {}",
                           waits.empty() ? "" : ", ", rank, slot, to_string(action_at(rank, slot)),
                           to_text(key), find(key).rank);
    }
    if (!waits.empty()) report("schedule", "deadlock: " + waits);
  }
  int length(int rank) const {
    return static_cast<int>(schedule_.per_rank[static_cast<std::size_t>(rank)].size());
  }
  const Action& action_at(int rank, int slot) const {
    return schedule_.per_rank[static_cast<std::size_t>(rank)][static_cast<std::size_t>(slot)];
  }
  std::optional<Key> blocker(int rank, int slot, const std::vector<int>& next) const {
    const Action* action = &action_at(rank, slot);
    for (; action != nullptr; action = action->overlap.get()) {
      if (!sound(*action)) continue;
      for (const std::optional<Key>& before : dependencies(key_of(*action))) {
        if (!before) continue;
        const Place other = find(*before);
        if (!other.exists() || other.rank == rank) continue;
        if (next[static_cast<std::size_t>(other.rank)] <= other.slot) return before;
      }
    }
    return std::nullopt;
  }

  const Schedule& schedule_;
  std::vector<Place> places_;
  std::vector<Place> steps_;  // OPTIMIZER_STEP of each (replica, stage)
  Problems problems_;
};

}  // namespace

Problems check(const Schedule& schedule) { return Checker(schedule).run(); }

}  // namespace quatrain
