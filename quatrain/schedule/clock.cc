// SPDX-License-Identifier: Apache-2.0
// Each rank advances along its row until it needs what has not arrived, and is woken when that
// arrives; so every action is looked at once or twice, whatever the order of ranks.
#include "quatrain/schedule/clock.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "quatrain/base/check.h"

namespace quatrain {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

bool is_backward(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput;
}
bool is_work(ActionKind kind) {
  return kind <= ActionKind::kBackward || kind == ActionKind::kOptimizerStep;
}
bool of_microbatch(ActionKind kind) { return kind < ActionKind::kUnshard; }

// Forward or backward through one stage of one micro-batch: what the rest of the pipeline sees.
struct Pass {
  int parts = 0;  // actions that make it up: one, or one a layer
  int left = 0;   // of these, not yet run
  ActionKind kind = ActionKind::kForward;
  double end = kNever;
};

// The result of a pass on its way to the neighbouring stage's rank.
struct Transfer {
  bool send_written = false;
  bool recv_written = false;
  double produced = kNever;
  double sent = kNever;
  double posted = kNever;
  double arrived = kNever;
};

struct Wire {
  std::vector<std::size_t> queue;  // cells, in the order of sending
  std::size_t next = 0;            // the first that has not left
  double free = 0.0;
};

// What an action waits for: a pass of its own rank, or one that is transferred.
struct Need {
  std::size_t cell;
  bool transferred;
};

class Clock {
 public:
  Clock(const Schedule& schedule, const Durations& durations)
      : schedule_(schedule),
        durations_(durations),
        num_ranks_(schedule.per_rank.size()),
        passes_(2 * cells()),
        transfers_(2 * cells()),
        lanes_(2 * num_ranks_ * num_ranks_),
        next_(num_ranks_, 0),
        free_(num_ranks_, 0.0),
        waiting_(num_ranks_) {
    CHECK(durations.of_stage.size() == static_cast<std::size_t>(schedule.num_stages),
          "durations of {} stages, a schedule of {}", durations.of_stage.size(),
          schedule.num_stages);
    for (const auto& row : schedule.per_rank) {
      for (const Action& action : row) for_halves(action, [&](const Action& a) { count(a); });
    }
  }

  Timeline run() {
    timeline_.per_rank.resize(num_ranks_);
    timeline_.exposed_communication.assign(num_ranks_, 0.0);
    ready_.resize(num_ranks_);
    std::iota(ready_.rbegin(), ready_.rend(), std::size_t{0});
    while (!ready_.empty()) {
      const std::size_t rank = ready_.back();
      ready_.pop_back();
      advance(rank);
    }
    refuse_deadlock();
    sum_up(timeline_);
    return std::move(timeline_);
  }

 private:
  // `a` is backward, and so are the passes and transfers of the second half of the cells.
  std::size_t cells() const {
    return schedule_.rank_of_stage.size() * static_cast<std::size_t>(schedule_.num_stages) *
           static_cast<std::size_t>(schedule_.num_microbatches);
  }
  std::size_t cell(bool backward, int replica, int stage, int microbatch) const {
    const int stages = schedule_.num_stages;
    const auto place = static_cast<std::size_t>(replica * stages + stage);
    return (backward ? cells() : 0) + place * static_cast<std::size_t>(schedule_.num_microbatches) +
           static_cast<std::size_t>(microbatch);
  }
  std::size_t cell(bool backward, const Action& action, int stage) const {
    return cell(backward, action.replica, stage, *action.microbatch);
  }
  std::size_t rank_of(int replica, int stage) const {
    return static_cast<std::size_t>(schedule_.rank_of_stage[static_cast<std::size_t>(replica)]
                                                           [static_cast<std::size_t>(stage)]);
  }

  template <class F>
  static void for_halves(const Action& action, F f) {
    for (const Action* half = &action; half != nullptr; half = half->overlap.get()) f(*half);
  }

  void check_range(const Action& action) const {
    const auto in = [](int value, std::size_t end) {
      return value >= 0 && static_cast<std::size_t>(value) < end;
    };
    const bool sound =
        in(action.stage, durations_.of_stage.size()) &&
        in(action.replica, schedule_.rank_of_stage.size()) &&
        (!of_microbatch(action.kind) ||
         in(action.microbatch.value_or(-1), static_cast<std::size_t>(schedule_.num_microbatches)));
    if (sound) return;
    throw ConfigError(
        fmt::format("{} is outside the schedule: stages are 0 to {}, micro-batches 0 to {}",
                    to_string(action), schedule_.num_stages - 1, schedule_.num_microbatches - 1));
  }

  void count(const Action& action) {
    check_range(action);
    const ActionKind kind = action.kind;
    if (kind == ActionKind::kForward || is_backward(kind)) {
      Pass& pass = passes_[cell(is_backward(kind), action, action.stage)];
      pass.kind = kind;
      pass.left = ++pass.parts;
    } else if (kind == ActionKind::kSendForward) {
      transfers_[cell(false, action, action.stage)].send_written = true;
    } else if (kind == ActionKind::kSendBackward) {
      transfers_[cell(true, action, action.stage)].send_written = true;
    } else if (kind == ActionKind::kRecvForward && action.stage > 0) {
      transfers_[cell(false, action, action.stage - 1)].recv_written = true;
    } else if (kind == ActionKind::kRecvBackward && action.stage + 1 < schedule_.num_stages) {
      transfers_[cell(true, action, action.stage + 1)].recv_written = true;
    }
  }

  Need from_stage(bool backward, const Action& action, int stage) const {
    const bool moved = rank_of(action.replica, stage) != rank_of(action.replica, action.stage);
    return {cell(backward, action, stage), moved};
  }
  Need own(bool backward, const Action& action) const {
    return {cell(backward, action, action.stage), false};
  }

  std::array<std::optional<Need>, 2> needs(const Action& action) const {
    switch (action.kind) {
      case ActionKind::kForward:
        if (action.stage == 0) return {};
        return {from_stage(false, action, action.stage - 1)};
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
        if (action.stage + 1 == schedule_.num_stages) return {own(false, action)};
        return {own(false, action), from_stage(true, action, action.stage + 1)};
      case ActionKind::kBackwardWeight: {
        const Need input = own(true, action);
        // By layers, weight halves stand between the input halves, each behind its own.
        if (passes_[input.cell].parts > 1) return {};
        return {input};
      }
      case ActionKind::kSendForward:
        return {own(false, action)};
      case ActionKind::kSendBackward:
        return {own(true, action)};
      case ActionKind::kRecvForward:
      case ActionKind::kRecvBackward:
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

  double arrival(const Need& need) const {
    return need.transferred ? transfers_[need.cell].arrived : passes_[need.cell].end;
  }
  double produced(const Need& need) const {
    return need.transferred ? transfers_[need.cell].produced : passes_[need.cell].end;
  }

  double duration(const Action& action) const {
    if (durations_.measured) return durations_.measured(action);
    double sum = 0.0;
    for_halves(action, [&](const Action& half) { sum += table_duration(half); });
    return action.overlap ? durations_.pair_factor * sum : sum;
  }
  double table_duration(const Action& action) const {
    const StageDurations& stage = durations_.of_stage[static_cast<std::size_t>(action.stage)];
    const double whole = time_of(stage, action.kind);
    if (!action.unit || action.kind > ActionKind::kBackward) return whole;
    const bool backward = action.kind != ActionKind::kForward;
    return whole / std::max(1, passes_[cell(backward, action, action.stage)].parts);
  }

  void advance(std::size_t rank) {
    const std::vector<Action>& row = schedule_.per_rank[rank];
    for (waiting_[rank].reset(); next_[rank] < row.size(); ++next_[rank]) {
      const Action& action = row[next_[rank]];
      double ready = free_[rank], content = free_[rank];
      for_halves(action, [&](const Action& half) {
        for (const std::optional<Need>& need : needs(half)) {
          if (!need) continue;
          if (arrival(*need) == kNever && !waiting_[rank]) waiting_[rank] = need;
          ready = std::max(ready, arrival(*need));
          content = std::max(content, produced(*need));
        }
      });
      if (waiting_[rank]) return;
      timeline_.exposed_communication[rank] += ready - content;
      const bool message = of_microbatch(action.kind) && action.kind > ActionKind::kBackward;
      const double end = message ? ready : ready + duration(action);
      timeline_.per_rank[rank].push_back({action, ready, end, sequence_++});
      free_[rank] = end;
      for_halves(action, [&](const Action& half) { finish(half, end); });
    }
  }

  void finish(const Action& action, double end) {
    const ActionKind kind = action.kind;
    if (kind == ActionKind::kForward || is_backward(kind)) {
      const std::size_t index = cell(is_backward(kind), action, action.stage);
      if (--passes_[index].left > 0) return;
      passes_[index].end = end;
      transfers_[index].produced = end;
      if (!transfers_[index].send_written) send(is_backward(kind), action, end);
    } else if (kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward) {
      send(kind == ActionKind::kSendBackward, action, end);
    } else if (kind == ActionKind::kRecvForward && action.stage > 0) {
      post(false, action, action.stage - 1, end);
    } else if (kind == ActionKind::kRecvBackward && action.stage + 1 < schedule_.num_stages) {
      post(true, action, action.stage + 1, end);
    }
  }

  Wire& lane(bool backward, std::size_t from, std::size_t to) {
    const bool shared = durations_.wires == Wires::kLinks;
    return lanes_[(from * num_ranks_ + to) * 2 + (backward && !shared ? 1 : 0)];
  }

  // `action` is of the sending stage.
  void send(bool backward, const Action& action, double time) {
    const int target = action.stage + (backward ? -1 : 1);
    if (target < 0 || target == schedule_.num_stages) return;
    const std::size_t from = rank_of(action.replica, action.stage);
    const std::size_t to = rank_of(action.replica, target);
    if (from == to) return;
    const std::size_t index = cell(backward, action, action.stage);
    Transfer& transfer = transfers_[index];
    transfer.sent = time;
    const bool awaits_receive = transfer.send_written != transfer.recv_written ||
                                (transfer.recv_written && durations_.rendezvous);
    if (!awaits_receive) transfer.posted = 0.0;
    if (durations_.wires == Wires::kUnlimited) {
      if (transfer.posted != kNever) carry(index, std::max(time, transfer.posted));
    } else {
      lane(backward, from, to).queue.push_back(index);
      drain(lane(backward, from, to));
    }
  }

  void post(bool backward, const Action& action, int source, double time) {
    const std::size_t index = cell(backward, action, source);
    Transfer& transfer = transfers_[index];
    if (transfer.arrived != kNever) return;
    transfer.posted = time;
    if (durations_.wires == Wires::kUnlimited) {
      if (transfer.sent != kNever) carry(index, std::max(time, transfer.sent));
    } else {
      drain(lane(backward, rank_of(action.replica, source), rank_of(action.replica, action.stage)));
    }
  }

  void drain(Wire& wire) {
    for (; wire.next < wire.queue.size(); ++wire.next) {
      const std::size_t index = wire.queue[wire.next];
      const Transfer& transfer = transfers_[index];
      if (transfer.posted == kNever) return;
      carry(index, std::max({transfer.sent, transfer.posted, wire.free}));
      wire.free = transfer.arrived;
    }
  }

  // Its message leaves at `begin`; wakes the receiver.
  void carry(std::size_t index, double begin) {
    const bool backward = index >= cells();
    Action message = action_of(index);
    message.kind = backward ? ActionKind::kSendBackward : ActionKind::kSendForward;
    const StageDurations& stage = durations_.of_stage[static_cast<std::size_t>(message.stage)];
    const double time = durations_.measured ? durations_.measured(message)
                        : backward          ? stage.send_backward
                                            : stage.send_forward;
    transfers_[index].arrived = begin + time;
    const std::size_t from = rank_of(message.replica, message.stage);
    const std::size_t to = rank_of(message.replica, message.stage + (backward ? -1 : 1));
    timeline_.messages.push_back(
        {message, static_cast<int>(from), static_cast<int>(to), begin, begin + time});
    const std::optional<Need>& waiting = waiting_[to];
    if (waiting && waiting->transferred && waiting->cell == index) ready_.push_back(to);
  }

  // The pass of a cell, as its (first) action.
  Action action_of(std::size_t index) const {
    const auto microbatches = static_cast<std::size_t>(schedule_.num_microbatches);
    const auto stages = static_cast<std::size_t>(schedule_.num_stages);
    const std::size_t place = index % cells() / microbatches;
    Action action;
    action.stage = static_cast<int>(place % stages);
    action.replica = static_cast<int>(place / stages);
    action.microbatch = static_cast<int>(index % microbatches);
    action.kind = passes_[index].parts > 0 ? passes_[index].kind
                  : index >= cells()       ? ActionKind::kBackward
                                           : ActionKind::kForward;
    return action;
  }

  void refuse_deadlock() const {
    std::string waits;
    for (std::size_t rank = 0; rank < num_ranks_; ++rank) {
      if (!waiting_[rank]) continue;
      const Need& need = *waiting_[rank];
      const Action wanted = action_of(need.cell);
      const Transfer& transfer = transfers_[need.cell];
      const bool unsent = transfer.produced != kNever && need.transferred;
      waits += fmt::format("{}rank {} waits at action {} ({}) for {}{} on rank {}",
                           waits.empty() ? "" : ", ", rank, next_[rank],
                           to_string(schedule_.per_rank[rank][next_[rank]]),
                           unsent ? "the message of " : "", to_string(wanted),
                           rank_of(wanted.replica, wanted.stage));
    }
    if (!waits.empty()) throw ConfigError("deadlock: " + waits);
  }

  const Schedule& schedule_;
  const Durations& durations_;
  std::size_t num_ranks_;
  std::vector<Pass> passes_;                  // [cell]
  std::vector<Transfer> transfers_;           // [cell] of the sender
  std::vector<Wire> lanes_;                   // [from][to][backward]
  std::vector<std::size_t> next_;             // [rank] slot
  std::vector<double> free_;                  // [rank] when its last action ended
  std::vector<std::optional<Need>> waiting_;  // [rank]
  std::vector<std::size_t> ready_;            // ranks that may advance
  std::int64_t sequence_ = 0;
  Timeline timeline_;
};

}  // namespace

void sum_up(Timeline& timeline) {
  double work = 0.0;
  timeline.makespan = timeline.span = 0.0;
  for (const std::vector<ClockEvent>& row : timeline.per_rank) {
    double first = kNever, last = 0.0;
    for (const ClockEvent& event : row) {
      timeline.makespan = std::max(timeline.makespan, event.end);
      if (!is_work(event.action.kind)) continue;
      first = std::min(first, event.begin);
      last = std::max(last, event.end);
      work += event.end - event.begin;
    }
    if (first != kNever) timeline.span = std::max(timeline.span, last - first);
  }
  timeline.bubble = timeline.span - work / static_cast<double>(timeline.per_rank.size());
  timeline.bubble_rate = timeline.span > 0.0 ? timeline.bubble / timeline.span : 0.0;
}

Timeline simulate(const Schedule& schedule, const Durations& durations) {
  return Clock(schedule, durations).run();
}

}  // namespace quatrain
