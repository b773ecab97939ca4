// SPDX-License-Identifier: Apache-2.0
// Walks all rows together. Messages and tied reduces block until both ends are there, nothing is
// buffered: what passes here passes on every transport. Waits for what is missing, which the other
// rules report, count as over.
#include <map>

#include "quatrain/schedule/check_rules.h"

namespace quatrain {
namespace {

class Walk {
 public:
  Walk(const Schedule& schedule, const ActionIndex& index)
      : schedule_(schedule), index_(index), next_(schedule.per_rank.size(), 0) {
    for_each_action(schedule, [&](const Action& action, Place place) {
      if (action.kind == ActionKind::kReduceTied) {
        tied_.try_emplace({action.replica, action.stage}, place);
      }
    });
  }

  void check(Findings& findings) {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < ranks(); ++rank) {
        int& slot = next_[static_cast<std::size_t>(rank)];
        while (slot < length(rank) && !blocker(rank, slot)) {
          ++slot;
          moved = true;
        }
      }
    }
    report(findings);
  }

 private:
  struct Wait {
    Place place;
    std::string text;
  };

  int ranks() const { return static_cast<int>(schedule_.per_rank.size()); }
  int length(int rank) const {
    return static_cast<int>(schedule_.per_rank[static_cast<std::size_t>(rank)].size());
  }
  const Action& action_at(Place place) const {
    return schedule_
        .per_rank[static_cast<std::size_t>(place.rank)][static_cast<std::size_t>(place.slot)];
  }
  bool reached(Place place) const {
    return next_[static_cast<std::size_t>(place.rank)] >= place.slot;
  }
  bool passed(Place place) const {
    return next_[static_cast<std::size_t>(place.rank)] > place.slot;
  }

  // What the action at (rank, slot) waits for on another rank.
  std::optional<Wait> blocker(int rank, int slot) const {
    const Action* action = &action_at({rank, slot});
    for (; action != nullptr; action = action->overlap.get()) {
      if (action->kind == ActionKind::kReduceTied) return tied_partner(*action, rank);
      if (!index_.holds(*action)) continue;
      const Key key = ActionIndex::key_of(*action);
      if (is_message(action->kind)) {
        const std::optional<Key> end = index_.other_end(key);
        const Place place = end ? index_.find(*end) : Place{};
        if (place.exists() && place.rank != rank && !reached(place)) {
          return Wait{place, to_text(*end)};
        }
        continue;
      }
      for (const std::optional<Key>& before : index_.dependencies(key)) {
        const Place place = before ? index_.find(*before) : Place{};
        if (place.exists() && place.rank != rank && !passed(place)) {
          return Wait{place, to_text(*before)};
        }
      }
    }
    return std::nullopt;
  }

  std::optional<Wait> tied_partner(const Action& action, int rank) const {
    const auto found = tied_.find({action.replica, schedule_.num_stages - 1 - action.stage});
    if (found == tied_.end() || found->second.rank == rank || reached(found->second)) {
      return std::nullopt;
    }
    return Wait{found->second, to_string(action_at(found->second))};
  }

  void report(Findings& findings) const {
    std::string waits;
    std::vector<Place> stuck;
    for (int rank = 0; rank < ranks(); ++rank) {
      const Place place{rank, next_[static_cast<std::size_t>(rank)]};
      if (place.slot == length(rank)) continue;
      const Wait wait = *blocker(rank, place.slot);
      waits += fmt::format("{}rank {} waits at action {} ({}) for {} on rank {}",
                           waits.empty() ? "" : ", ", rank, place.slot, to_string(action_at(place)),
                           wait.text, wait.place.rank);
      stuck.push_back(place);
    }
    if (!waits.empty()) findings.add(Rule::kDeadlock, "schedule", "deadlock: " + waits, {}, stuck);
  }

  const Schedule& schedule_;
  const ActionIndex& index_;
  std::vector<int> next_;
  std::map<std::pair<int, int>, Place> tied_;  // (replica, stage)
};

}  // namespace

void check_progress(const Schedule& schedule, const ActionIndex& index, Findings& findings) {
  Walk(schedule, index).check(findings);
}

}  // namespace quatrain
