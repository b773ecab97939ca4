// SPDX-License-Identifier: Apache-2.0
// Passes over schedules: each takes rows and gives rows, and keeps every order that it does not say
// it changes.
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

Action with_kind(Action action, ActionKind kind) {
  action.kind = kind;
  return action;
}

}  // namespace

Schedule split_backward(const Schedule& schedule) {
  Schedule result = schedule;
  for (std::vector<Action>& row : result.per_rank) {
    std::vector<Action> split;
    for (const Action& action : row) {
      CHECK(!action.overlap, "{} is a pair: split before pairing", to_string(action));
      if (action.kind == ActionKind::kBackward) {
        split.push_back(with_kind(action, ActionKind::kBackwardInput));
        split.push_back(with_kind(action, ActionKind::kBackwardWeight));
      } else {
        split.push_back(action);
      }
    }
    row = std::move(split);
  }
  return result;
}

Schedule with_optimizer_step(const Schedule& schedule) {
  Schedule result = schedule;
  for (std::size_t replica = 0; replica < schedule.rank_of_stage.size(); ++replica) {
    for (std::size_t stage = 0; stage < schedule.rank_of_stage[replica].size(); ++stage) {
      Action step;
      step.stage = static_cast<int>(stage);
      step.kind = ActionKind::kOptimizerStep;
      step.replica = static_cast<int>(replica);
      const int rank = schedule.rank_of_stage[replica][stage];
      result.per_rank[static_cast<std::size_t>(rank)].push_back(step);
    }
  }
  return result;
}

}  // namespace quatrain
