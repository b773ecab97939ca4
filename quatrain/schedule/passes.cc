// SPDX-License-Identifier: Apache-2.0
// Passes over schedules: each takes rows and gives rows, and keeps every order that it does not say
// it changes.
#include <utility>

#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

Action with_kind(Action action, ActionKind kind) {
  action.kind = kind;
  return action;
}

// Of a pair, the weight half comes behind both.
void append_split(std::vector<Action>& row, Action action) {
  const Action half = action.overlap ? *action.overlap : action;
  if (half.kind != ActionKind::kBackward) {
    row.push_back(std::move(action));
    return;
  }
  const Action input = with_kind(half, ActionKind::kBackwardInput);
  if (action.overlap) {
    action.overlap = std::make_shared<const Action>(input);
    row.push_back(std::move(action));
  } else {
    row.push_back(input);
  }
  row.push_back(with_kind(half, ActionKind::kBackwardWeight));
}

bool completes(const Action& input, const Action& weight) {
  return input.kind == ActionKind::kBackwardInput && !input.overlap &&
         weight == with_kind(input, ActionKind::kBackwardWeight);
}

}  // namespace

Schedule split_backward(const Schedule& schedule) {
  Schedule result = schedule;
  for (std::vector<Action>& row : result.per_rank) {
    std::vector<Action> split;
    for (Action& action : row) append_split(split, std::move(action));
    row = std::move(split);
  }
  return result;
}

Schedule merge_backward(const Schedule& schedule) {
  Schedule result = schedule;
  for (std::vector<Action>& row : result.per_rank) {
    std::vector<Action> merged;
    for (Action& action : row) {
      if (!merged.empty() && completes(merged.back(), action)) {
        merged.back().kind = ActionKind::kBackward;
      } else {
        merged.push_back(std::move(action));
      }
    }
    row = std::move(merged);
  }
  return result;
}

Schedule without_pairs(const Schedule& schedule) {
  Schedule result = schedule;
  for (std::vector<Action>& row : result.per_rank) {
    std::vector<Action> single;
    for (Action& action : row) {
      const std::shared_ptr<const Action> other = std::exchange(action.overlap, nullptr);
      single.push_back(std::move(action));
      if (other) single.push_back(*other);
    }
    row = std::move(single);
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
