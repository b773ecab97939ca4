// SPDX-License-Identifier: Apache-2.0
// Passes over schedules: each takes rows and gives rows, and keeps every order that it does not say
// it changes.
#include <utility>

#include "quatrain/schedule/build.h"

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

Schedule split_backward(const Schedule& schedule) { return with_rows(schedule, append_split); }

Schedule merge_backward(const Schedule& schedule) {
  return with_rows(schedule, [](std::vector<Action>& row, Action action) {
    if (!row.empty() && completes(row.back(), action)) {
      row.back().kind = ActionKind::kBackward;
    } else {
      row.push_back(std::move(action));
    }
  });
}

Schedule without_pairs(const Schedule& schedule) {
  return with_rows(schedule, [](std::vector<Action>& row, Action action) {
    const std::shared_ptr<const Action> other = std::exchange(action.overlap, nullptr);
    row.push_back(std::move(action));
    if (other) row.push_back(*other);
  });
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
