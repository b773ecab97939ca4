// SPDX-License-Identifier: Apache-2.0
#include "quatrain/schedule/action_index.h"

namespace quatrain {
namespace {

constexpr int kTracked = static_cast<int>(ActionKind::kUnshard);  // computation and messages

bool within(int value, std::size_t count) {
  return value >= 0 && static_cast<std::size_t>(value) < count;
}

}  // namespace

ActionIndex::ActionIndex(const Schedule& schedule) : schedule_(schedule) {
  places_.resize(schedule.rank_of_stage.size() * static_cast<std::size_t>(schedule.num_stages) *
                 kTracked * static_cast<std::size_t>(schedule.num_microbatches));
  for_each_action(schedule, [&](const Action& action, Place place) {
    if (!holds(action)) return;
    Place& first = places_[index(key_of(action))];
    if (!first.exists()) first = place;
  });
}

bool ActionIndex::holds(const Action& action) const {
  return static_cast<int>(action.kind) < kTracked &&
         within(action.stage, static_cast<std::size_t>(schedule_.num_stages)) &&
         within(action.replica, schedule_.rank_of_stage.size()) && action.microbatch &&
         within(*action.microbatch, static_cast<std::size_t>(schedule_.num_microbatches));
}

int ActionIndex::rank_of(int replica, int stage) const {
  return schedule_
      .rank_of_stage[static_cast<std::size_t>(replica)][static_cast<std::size_t>(stage)];
}

std::size_t ActionIndex::index(const Key& key) const {
  const auto of = [](std::size_t a, int n, int b) {
    return a * static_cast<std::size_t>(n) + static_cast<std::size_t>(b);
  };
  const std::size_t cell =
      of(static_cast<std::size_t>(key.replica), schedule_.num_stages, key.stage);
  return of(of(cell, kTracked, static_cast<int>(key.kind)), schedule_.num_microbatches,
            key.microbatch);
}

Key ActionIndex::backward(int replica, int stage, int microbatch) const {
  const Key fused{replica, stage, ActionKind::kBackward, microbatch};
  if (find(fused).exists()) return fused;
  return {replica, stage, ActionKind::kBackwardInput, microbatch};
}

std::optional<Key> ActionIndex::consumer(const Key& key) const {
  const auto [r, s, kind, m] = key;
  if (kind == ActionKind::kForward && s + 1 < schedule_.num_stages) {
    return Key{r, s + 1, ActionKind::kForward, m};
  }
  const bool backs = kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput;
  if (backs && s > 0) return backward(r, s - 1, m);
  return std::nullopt;
}

std::optional<Key> ActionIndex::other_end(const Key& key) const {
  const auto [r, s, kind, m] = key;
  const auto neighbour = [&](int stage, ActionKind other) -> std::optional<Key> {
    if (stage < 0 || stage >= schedule_.num_stages) return std::nullopt;
    return Key{r, stage, other, m};
  };
  if (kind == ActionKind::kSendForward) return neighbour(s + 1, ActionKind::kRecvForward);
  if (kind == ActionKind::kRecvForward) return neighbour(s - 1, ActionKind::kSendForward);
  if (kind == ActionKind::kSendBackward) return neighbour(s - 1, ActionKind::kRecvBackward);
  if (kind == ActionKind::kRecvBackward) return neighbour(s + 1, ActionKind::kSendBackward);
  return std::nullopt;
}

std::array<std::optional<Key>, 2> ActionIndex::dependencies(const Key& key) const {
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
    case ActionKind::kRecvBackward:
      return {other_end(key)};
    default:  // nothing that is tracked
      return {};
  }
}

}  // namespace quatrain
