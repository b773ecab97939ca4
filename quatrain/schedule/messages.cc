// SPDX-License-Identifier: Apache-2.0
#include "quatrain/schedule/messages.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/schedule/action_index.h"
#include "quatrain/schedule/build.h"

namespace quatrain {
namespace {

// Takes actions and messages in the order of time, each when all before it is taken.
class MessageOrder {
 public:
  MessageOrder(const Schedule& schedule, const Timeline& times)
      : schedule_(schedule), times_(times), index_(schedule), result_(schedule) {
    CHECK(times.per_rank.size() == ranks(), "times of {} ranks for {}", times.per_rank.size(),
          ranks());
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      const std::size_t slots = schedule.per_rank[rank].size();
      CHECK(times.per_rank[rank].size() == slots, "times of {} actions for {}",
            times.per_rank[rank].size(), slots);
      missing_.emplace_back(slots, 0);
      result_.per_rank[rank].clear();
    }
    next_.resize(ranks(), 0);
    for_each_action(schedule, [&](const Action& action, Place place) {
      CHECK(!is_message(action.kind), "{} is written already", to_string(action));
      for_receiver(action, place, [&](const Key&, Place to) { ++missing(to); });
    });
  }

  Schedule run() {
    for (std::size_t rank = 0; rank < ranks(); ++rank) offer_next(static_cast<int>(rank));
    while (!ready_.empty()) {
      const Event event = ready_.top();
      ready_.pop();
      if (event.receiver) {
        deliver(event);
      } else {
        perform(event.place);
      }
    }
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      CHECK(next_[rank] == schedule_.per_rank[rank].size(), "rank {} waits for ever", rank);
    }
    return std::move(result_);
  }

 private:
  struct Event {
    double time;
    Place place;                  // of the action or the message's producer
    std::optional<Key> receiver;  // a message; it precedes computation of the same time
    Key producer;
    auto order() const { return std::tuple(time, !receiver, place.rank, place.slot); }
    friend bool operator>(const Event& a, const Event& b) { return a.order() > b.order(); }
  };

  std::size_t ranks() const { return schedule_.per_rank.size(); }
  int& missing(Place place) {
    return missing_[static_cast<std::size_t>(place.rank)][static_cast<std::size_t>(place.slot)];
  }

  // f(consumer, its place) where another rank needs what `action` makes.
  template <class F>
  void for_receiver(const Action& action, Place place, F f) const {
    if (!index_.holds(action)) return;
    const std::optional<Key> consumer = index_.consumer(ActionIndex::key_of(action));
    if (!consumer) return;
    const Place to = index_.find(*consumer);
    if (to.exists() && to.rank != place.rank) f(*consumer, to);
  }

  void offer_next(int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const std::size_t slot = next_[r];
    if (slot == schedule_.per_rank[r].size() || missing_[r][slot] > 0) return;
    ready_.push({times_.per_rank[r][slot].begin, {rank, static_cast<int>(slot)}, std::nullopt, {}});
  }

  void perform(Place place) {
    const auto r = static_cast<std::size_t>(place.rank);
    const auto slot = static_cast<std::size_t>(place.slot);
    const Action& action = schedule_.per_rank[r][slot];
    result_.per_rank[r].push_back(action);
    ++next_[r];
    for (const Action* half = &action; half != nullptr; half = half->overlap.get()) {
      for_receiver(*half, place, [&](const Key& consumer, Place) {
        ready_.push({times_.per_rank[r][slot].end, place, consumer, ActionIndex::key_of(*half)});
      });
    }
    offer_next(place.rank);
  }

  void deliver(const Event& event) {
    const bool forward = event.producer.kind == ActionKind::kForward;
    const Place to = index_.find(*event.receiver);
    add(event.place.rank, event.producer,
        forward ? ActionKind::kSendForward : ActionKind::kSendBackward);
    add(to.rank, *event.receiver, forward ? ActionKind::kRecvForward : ActionKind::kRecvBackward);
    const bool is_next =
        next_[static_cast<std::size_t>(to.rank)] == static_cast<std::size_t>(to.slot);
    if (--missing(to) == 0 && is_next) offer_next(to.rank);
  }

  void add(int rank, const Key& key, ActionKind kind) {
    Action message = compute(key.stage, kind, key.microbatch);
    message.replica = key.replica;
    result_.per_rank[static_cast<std::size_t>(rank)].push_back(message);
  }

  const Schedule& schedule_;
  const Timeline& times_;
  ActionIndex index_;
  Schedule result_;
  std::vector<std::vector<int>> missing_;  // messages that an action still waits for
  std::vector<std::size_t> next_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> ready_;
};

}  // namespace

Schedule with_messages(const Schedule& schedule, const Timeline& times) {
  return MessageOrder(schedule, times).run();
}

Schedule with_messages(const Schedule& schedule) {
  Durations unit;
  unit.of_stage.resize(static_cast<std::size_t>(schedule.num_stages));
  return with_messages(schedule, simulate(schedule, unit));
}

Schedule with_tied_reduce(const Schedule& schedule) {
  Schedule result = schedule;
  for (std::size_t replica = 0; replica < schedule.rank_of_stage.size(); ++replica) {
    const std::vector<int>& ranks = schedule.rank_of_stage[replica];
    if (ranks.front() == ranks.back()) continue;
    for (const int stage : {0, schedule.num_stages - 1}) {
      Action reduce;
      reduce.stage = stage;
      reduce.kind = ActionKind::kReduceTied;
      reduce.replica = static_cast<int>(replica);
      const int rank = ranks[static_cast<std::size_t>(stage)];
      std::vector<Action>& row = result.per_rank[static_cast<std::size_t>(rank)];
      const auto last = std::find_if(row.rbegin(), row.rend(), [](const Action& action) {
        return is_computation(action.kind) || is_message(action.kind) ||
               action.kind == ActionKind::kReduceTied;
      });
      row.insert(last.base(), reduce);
    }
  }
  return result;
}

std::span<const Action> ahead_of_validation(const std::vector<Action>& row) {
  const auto first = std::find_if(row.begin(), row.end(), [](const Action& action) {
    return is_computation(action.kind) && action.kind != ActionKind::kForward;
  });
  return {row.begin(), first};
}

std::vector<Action> received_ahead(const Schedule& schedule, int rank) {
  const ActionIndex index(schedule);
  std::vector<Action> result;
  for (const Action& action : schedule.per_rank[static_cast<std::size_t>(rank)]) {
    if (!is_message(action.kind) || is_send(action.kind)) continue;
    const Place sent = index.find(*index.other_end(ActionIndex::key_of(action)));
    const auto& row = schedule.per_rank[static_cast<std::size_t>(sent.rank)];
    if (static_cast<std::size_t>(sent.slot) < ahead_of_validation(row).size()) {
      result.push_back(action);
    }
  }
  return result;
}

}  // namespace quatrain
