// SPDX-License-Identifier: Apache-2.0
// Where the actions of a schedule stand and what each waits for. Dependencies:
//   F(s) after F(s-1); I or B(s) after F(s) and after I or B(s+1); W(s) after I(s);
//   where messages are written out, RECV after its SEND, and the receiver's half after the RECV.
#pragma once
#include <array>
#include <optional>
#include <vector>

#include "quatrain/schedule/schedule.h"

namespace quatrain {

struct Place {
  int rank = -1;
  int slot = -1;
  bool exists() const { return rank >= 0; }
  friend bool operator==(Place, Place) = default;
};

// A computation or message.
struct Key {
  int replica;
  int stage;
  ActionKind kind;
  int microbatch;
};

inline bool is_forward_message(ActionKind kind) {
  return kind == ActionKind::kSendForward || kind == ActionKind::kRecvForward;
}
inline bool is_send(ActionKind kind) {
  return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward;
}
inline bool is_message(ActionKind kind) {
  return is_send(kind) || kind == ActionKind::kRecvForward || kind == ActionKind::kRecvBackward;
}
inline bool is_computation(ActionKind kind) { return kind <= ActionKind::kBackward; }

// f(action, place), both halves of a pair on their own.
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

// Needs a sound rank_of_stage. Keeps a reference to the schedule.
class ActionIndex {
 public:
  explicit ActionIndex(const Schedule& schedule);

  // A computation or message of a stage, replica and micro-batch that the schedule has.
  bool holds(const Action& action) const;
  static Key key_of(const Action& action) {
    return {action.replica, action.stage, action.kind, *action.microbatch};
  }
  Place find(const Key& key) const { return places_[index(key)]; }  // the first of repeated ones
  int rank_of(int replica, int stage) const;

  Key backward(int replica, int stage, int microbatch) const;  // whichever of I and B exists
  // Of a computation: whose input it makes; absent at the ends and for W.
  std::optional<Key> consumer(const Key& key) const;
  // The other end of a message, if it has one within the pipeline.
  std::optional<Key> other_end(const Key& key) const;
  // What `key` waits for; a receive stands before the neighbour's action where there is one.
  std::array<std::optional<Key>, 2> dependencies(const Key& key) const;

 private:
  std::size_t index(const Key& key) const;
  Key received(const Key& message, const Key& neighbour) const {
    return find(message).exists() ? message : neighbour;
  }

  const Schedule& schedule_;
  std::vector<Place> places_;
};

}  // namespace quatrain
