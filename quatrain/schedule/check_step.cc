// SPDX-License-Identifier: Apache-2.0
// The end of a step: gradients are whole when they are reduced, norms see reduced gradients, every
// stage steps once and last, tied weights meet their other copy, units are gathered and freed in
// turn.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "quatrain/schedule/check_rules.h"

namespace quatrain {
namespace {

using Owner = std::pair<int, int>;  // (replica, stage)

class Step {
 public:
  Step(const Schedule& schedule, const ActionIndex& index, Findings& findings)
      : schedule_(schedule), index_(index), findings_(findings) {
    for_each_action(schedule, [&](const Action& action, Place place) {
      if (in_range(action)) note(action, place);
    });
  }

  void check() {
    for_each_action(schedule_, [&](const Action& action, Place place) {
      if (!in_range(action)) return;
      check_after_step(action, place);
      if (action.kind == ActionKind::kReduceGrad) check_reduce(action, place);
      if (action.kind == ActionKind::kReduceTied) check_tied(action, place);
      if (action.kind == ActionKind::kNormPart) check_norm(action, place);
      if (action.unit) check_unit(action, place);
    });
    find_kept_units();
    find_missing_steps();
  }

 private:
  bool in_range(const Action& action) const {
    return action.stage >= 0 && action.stage < schedule_.num_stages && action.replica >= 0 &&
           static_cast<std::size_t>(action.replica) < schedule_.rank_of_stage.size();
  }
  static Owner owner(const Action& action) { return {action.replica, action.stage}; }

  void note(const Action& action, Place place) {
    const Owner who = owner(action);
    if (adds_gradient(action)) last_gradient_[who] = place;
    if (action.kind == ActionKind::kReduceGrad || action.kind == ActionKind::kReduceTied) {
      last_reduce_[who] = place;
    }
    if (action.kind == ActionKind::kReduceTied) tied_.insert(who);
    if (action.kind == ActionKind::kOptimizerStep) steps_.try_emplace(who, place);
  }
  static bool adds_gradient(const Action& action) {
    return action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight;
  }

  void check_after_step(const Action& action, Place place) {
    const auto step = steps_.find(owner(action));
    const bool reads_no_weights = action.kind == ActionKind::kUnshard || is_message(action.kind);
    if (step == steps_.end() || reads_no_weights) return;
    const auto& [rank, slot] = step->second;
    if (rank != place.rank || slot >= place.slot) return;
    if (action.kind == ActionKind::kOptimizerStep) return;  // a repeated one
    findings_.at(Rule::kAfterStep, place,
                 fmt::format("{} runs after its stage's OPTIMIZER_STEP", to_string(action)),
                 fmt::format("that is action {}", slot), {step->second});
  }

  void too_early(Rule rule, const Action& action, Place place, const std::map<Owner, Place>& last,
                 std::string_view what) {
    const auto found = last.find(owner(action));
    if (found == last.end() || found->second.rank != place.rank) return;
    if (found->second.slot < place.slot) return;
    findings_.at(rule, place,
                 fmt::format("{} runs before its stage's last {}", to_string(action), what),
                 fmt::format("that is action {}", found->second.slot), {found->second});
  }

  // A unit's gradient may be whole before its stage's.
  void check_reduce(const Action& action, Place place) {
    if (action.unit) return;
    if (!action.microbatch) {
      too_early(Rule::kReduceTooEarly, action, place, last_gradient_, "gradient");
      return;
    }
    for (const ActionKind kind : {ActionKind::kBackward, ActionKind::kBackwardWeight}) {
      Action gradient = action;
      gradient.kind = kind;
      if (!index_.holds(gradient)) return;
      const Place last = index_.find(ActionIndex::key_of(gradient));
      if (last.rank != place.rank || last.slot < place.slot) continue;
      findings_.at(
          Rule::kReduceTooEarly, place,
          fmt::format("{} runs before {}, which it sums", to_string(action), to_string(gradient)),
          fmt::format("that is action {}", last.slot), {last});
    }
  }

  void check_tied(const Action& action, Place place) {
    too_early(Rule::kReduceTooEarly, action, place, last_gradient_, "gradient");
    const int last = schedule_.num_stages - 1;
    const Owner other{action.replica, last - action.stage};
    if ((action.stage == 0 || action.stage == last) && last > 0 && tied_.contains(other)) return;
    findings_.at(Rule::kReducePartner, place,
                 fmt::format("{} has no other owner", to_string(action)),
                 fmt::format("stages 0 and {} both have one", last));
  }

  void check_norm(const Action& action, Place place) {
    too_early(Rule::kNormTooEarly, action, place, last_gradient_, "gradient");
    too_early(Rule::kNormTooEarly, action, place, last_reduce_, "reduction");
  }

  void check_unit(const Action& action, Place place) {
    const std::tuple key{action.replica, action.stage, *action.unit, place.rank};
    if (action.kind == ActionKind::kUnshard && !live_.try_emplace(key, place).second) {
      findings_.at(Rule::kUnbalancedUnits, place,
                   fmt::format("{} gathers what is there already", to_string(action)),
                   "since " + Findings::text(live_[key]), {live_[key]});
    }
    if (action.kind == ActionKind::kReshard && live_.erase(key) == 0) {
      findings_.at(Rule::kUnbalancedUnits, place,
                   fmt::format("{} frees what is not there", to_string(action)));
    }
  }

  // Behind the step, gathered weights wait for the next one.
  void find_kept_units() {
    for (const auto& [key, place] : live_) {
      const auto step = steps_.find({std::get<0>(key), std::get<1>(key)});
      if (step != steps_.end() && step->second.slot < place.slot) continue;
      const auto& row = schedule_.per_rank[static_cast<std::size_t>(place.rank)];
      findings_.at(
          Rule::kUnbalancedUnits, place,
          fmt::format("{} is never freed", to_string(row[static_cast<std::size_t>(place.slot)])));
    }
  }

  void find_missing_steps() {
    if (steps_.empty()) return;
    for (std::size_t replica = 0; replica < schedule_.rank_of_stage.size(); ++replica) {
      for (int stage = 0; stage < schedule_.num_stages; ++stage) {
        if (steps_.contains({static_cast<int>(replica), stage})) continue;
        findings_.add(Rule::kMissingStep,
                      fmt::format("rank {}", index_.rank_of(static_cast<int>(replica), stage)),
                      fmt::format("{}OPTIMIZER_STEP is missing", stage), "other stages have one");
      }
    }
  }

  const Schedule& schedule_;
  const ActionIndex& index_;
  Findings& findings_;
  std::map<Owner, Place> last_gradient_, last_reduce_, steps_;
  std::set<Owner> tied_;
  std::map<std::tuple<int, int, int, int>, Place> live_;  // (replica, stage, unit, rank)
};

}  // namespace

void check_step(const Schedule& schedule, const ActionIndex& index, Findings& findings) {
  Step(schedule, index, findings).check();
}

}  // namespace quatrain
