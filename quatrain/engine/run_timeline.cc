// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/run_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "quatrain/schedule/action_index.h"

namespace quatrain {
namespace {

struct Interval {
  double begin = 0.0, end = 0.0;
};
using ByAction = std::map<std::string, Interval>;

// The RECV of a SEND, by the neighbour's stage.
std::string receive_of(Action send) {
  const bool forward = send.kind == ActionKind::kSendForward;
  send.kind = forward ? ActionKind::kRecvForward : ActionKind::kRecvBackward;
  send.stage += forward ? 1 : -1;
  return to_string(send);
}
std::string send_of(Action receive) {
  const bool forward = receive.kind == ActionKind::kRecvForward;
  receive.kind = forward ? ActionKind::kSendForward : ActionKind::kSendBackward;
  receive.stage += forward ? -1 : 1;
  return to_string(receive);
}

class Comparison {
 public:
  explicit Comparison(std::span<const std::vector<TraceEvent>> events) : events_(events) {
    run_.begin_us = std::numeric_limits<double>::infinity();
    for (const auto& rank : events) {
      for (const TraceEvent& event : rank) {
        lanes_[event.lane][to_string(event.action)] = {event.begin_us, event.end_us};
        run_.begin_us = std::min(run_.begin_us, event.begin_us);
        end_us_ = std::max(end_us_, event.end_us);
      }
    }
    run_.measured_us = end_us_ - run_.begin_us;
  }

  RunTimeline run(const Schedule& schedule) {
    Durations durations;
    durations.of_stage.resize(static_cast<std::size_t>(schedule.num_stages));
    durations.measured = [this](const Action& action) { return duration(action); };
    run_.simulated = simulate(schedule, durations);
    run_.simulated_us = run_.simulated.makespan;
    for (std::size_t rank = 0; rank < events_.size(); ++rank) run_.ranks.push_back(time_of(rank));
    return std::move(run_);
  }

 private:
  const Interval* find(TraceLane lane, const std::string& action) const {
    const auto of_lane = lanes_.find(lane);
    if (of_lane == lanes_.end()) return nullptr;
    const auto found = of_lane->second.find(action);
    return found == of_lane->second.end() ? nullptr : &found->second;
  }

  // Of a message: from when both ends were there until it had arrived, where somebody waited.
  double duration(const Action& action) const {
    if (is_send(action.kind)) {
      const std::string receive = receive_of(action);
      const Interval* wait = find(TraceLane::kWait, receive);
      const Interval* received = find(TraceLane::kReceive, receive);
      const Interval* sent = find(TraceLane::kSend, to_string(action));
      if (wait == nullptr || received == nullptr || sent == nullptr) return 0.0;
      return std::max(0.0, wait->end - std::max(sent->begin, received->begin));
    }
    const Interval* took = find(TraceLane::kCompute, to_string(action));
    return took == nullptr ? 0.0 : took->end - took->begin;
  }

  RankTime time_of(std::size_t rank) const {
    RankTime time;
    double first = end_us_;
    double last = run_.begin_us;
    std::vector<const TraceEvent*> waits;  // that no computation around them has ended yet
    for (const TraceEvent& event : events_[rank]) {
      if (event.lane == TraceLane::kWait) {
        add_wait(event, time);
        waits.push_back(&event);
      }
      if (event.lane == TraceLane::kCompute) {
        time.compute += event.end_us - event.begin_us;
        for (; !waits.empty() && waits.back()->begin_us >= event.begin_us; waits.pop_back()) {
          time.compute -= waits.back()->end_us - waits.back()->begin_us;
        }
      }
      first = std::min(first, event.begin_us);
      last = std::max(last, event.end_us);
    }
    time.idle = first - run_.begin_us + end_us_ - last;
    time.other = run_.measured_us - time.compute - time.not_sent - time.late_receive - time.lane -
                 time.collectives - time.idle;
    time.simulated_idle = run_.simulated_us;
    for (const ClockEvent& event : run_.simulated.per_rank[rank]) {
      time.simulated_idle -= event.end - event.begin;
    }
    return time;
  }

  void add_wait(const TraceEvent& event, RankTime& time) const {
    const double whole = event.end_us - event.begin_us;
    if (!is_message(event.action.kind) || is_send(event.action.kind)) {
      time.collectives += whole;
      return;
    }
    const Interval* sent = find(TraceLane::kSend, send_of(event.action));
    const Interval* posted = find(TraceLane::kReceive, to_string(event.action));
    if (sent == nullptr || posted == nullptr) {
      time.lane += whole;
      return;
    }
    const auto within = [&](double us) { return std::clamp(us, event.begin_us, event.end_us); };
    const double both = within(std::max(sent->begin, posted->begin));
    const double left = within(sent->begin);
    time.not_sent += left - event.begin_us;
    time.late_receive += both - left;
    time.lane += event.end_us - both;
  }

  std::span<const std::vector<TraceEvent>> events_;
  std::map<TraceLane, ByAction> lanes_;
  double end_us_ = 0.0;
  RunTimeline run_;
};

}  // namespace

RunTimeline compare(const Schedule& schedule, std::span<const std::vector<TraceEvent>> events) {
  return Comparison(events).run(schedule);
}

std::string to_table(const RunTimeline& run) {
  std::string text = fmt::format(
      "step of {:.1f} ms, {:.1f} ms by the clock with its own durations ({:+.1f} %)\n"
      "ms of rank  compute  not sent  late receive   lane  collectives   idle  other  "
      "(clock: idle)\n",
      run.measured_us / 1e3, run.simulated_us / 1e3,
      100.0 * (run.measured_us / run.simulated_us - 1.0));
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const RankTime& t = run.ranks[rank];
    text += fmt::format(
        "{:>10}  {:>7.1f}  {:>8.1f}  {:>12.1f}  {:>5.1f}  {:>11.1f}  {:>5.1f}  {:>5.1f}  "
        "{:>13.1f}\n",
        rank, t.compute / 1e3, t.not_sent / 1e3, t.late_receive / 1e3, t.lane / 1e3,
        t.collectives / 1e3, t.idle / 1e3, t.other / 1e3, t.simulated_idle / 1e3);
  }
  return text;
}

}  // namespace quatrain
