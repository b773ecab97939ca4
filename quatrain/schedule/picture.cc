// SPDX-License-Identifier: Apache-2.0
#include "quatrain/schedule/picture.h"

#include <fmt/format.h>

#include <algorithm>

namespace quatrain {
namespace {

// Which stages of a row are not its first chunk of the first replica.
class Shades {
 public:
  explicit Shades(const std::vector<ClockEvent>& row) {
    for (const ClockEvent& event : row) {
      for (const Action* a = &event.action; a != nullptr; a = a->overlap.get()) {
        if (a->replica == 0) first_ = first_ < 0 ? a->stage : std::min(first_, a->stage);
      }
    }
  }
  bool light(const Action& action) const { return action.replica > 0 || action.stage != first_; }

 private:
  int first_ = -1;
};

double weight(const Action& action) { return action.kind == ActionKind::kBackward ? 2.0 : 1.0; }

void add_tiles(std::vector<Tile>& line, const ClockEvent& event, const Shades& shades) {
  const Action* other = event.action.overlap.get();
  const double all = weight(event.action) + (other == nullptr ? 0.0 : weight(*other));
  double share = 0.0;
  for (const Action* half = &event.action; half != nullptr; half = half->overlap.get()) {
    Tile tile;
    tile.begin = event.begin;
    tile.end = event.end;
    tile.light = shades.light(*half);
    tile.action = *half;
    tile.action.overlap = nullptr;
    tile.half = half == other ? 1 : 0;
    tile.halves = other == nullptr ? 1 : 2;
    tile.share_begin = share;
    share += weight(*half) / all;
    tile.share_end = share;
    line.push_back(std::move(tile));
  }
}

constexpr int kComputeThread = 0, kSendThread = 5;

std::string named(std::string_view what, int process, int thread, const std::string& name) {
  return fmt::format(R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"name":"{}"}}}})", what,
                     process, thread, name);
}

struct Interval {
  std::string name;
  std::string_view category;
  int thread;
  double begin, end;
};

std::string complete(const Interval& interval, int process, const TraceLabels& labels) {
  return fmt::format(
      R"({{"ph":"X","name":"{}","cat":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f}}})",
      interval.name, interval.category, process, interval.thread,
      labels.begin_us + interval.begin * labels.us_per_unit,
      (interval.end - interval.begin) * labels.us_per_unit);
}

}  // namespace

std::vector<std::vector<Tile>> tiles(const Timeline& timeline) {
  std::vector<std::vector<Tile>> result;
  for (const std::vector<ClockEvent>& row : timeline.per_rank) {
    const Shades shades(row);
    std::vector<Tile> line;
    for (const ClockEvent& event : row) {
      if (event.end <= event.begin) continue;
      add_tiles(line, event, shades);
    }
    result.push_back(std::move(line));
  }
  return result;
}

std::vector<std::string> chrome_rows(const Timeline& timeline, const TraceLabels& labels) {
  std::vector<std::vector<std::string>> events(timeline.per_rank.size());
  const auto process = [&](std::size_t rank) {
    return labels.first_process + static_cast<int>(rank);
  };
  for (std::size_t rank = 0; rank < events.size(); ++rank) {
    const int pid = process(rank);
    events[rank].push_back(
        named("process_name", pid, 0, fmt::format("{}{}", labels.process, rank)));
    events[rank].push_back(named("thread_name", pid, kComputeThread, "compute"));
    events[rank].push_back(named("thread_name", pid, kSendThread, "send"));
    for (const ClockEvent& event : timeline.per_rank[rank]) {
      if (event.end <= event.begin) continue;
      events[rank].push_back(
          complete({to_string(event.action), "compute", kComputeThread, event.begin, event.end},
                   pid, labels));
    }
  }
  for (const ClockMessage& message : timeline.messages) {
    if (message.end <= message.begin) continue;
    const auto from = static_cast<std::size_t>(message.from);
    events[from].push_back(
        complete({to_string(message.action), "send", kSendThread, message.begin, message.end},
                 process(from), labels));
  }
  std::vector<std::string> rows;
  for (const std::vector<std::string>& of_rank : events) {
    rows.push_back(fmt::format("[{}]", fmt::join(of_rank, ",\n")));
  }
  return rows;
}

std::string to_chrome_trace(const Timeline& timeline, const TraceLabels& labels) {
  std::string all;
  for (const std::string& row : chrome_rows(timeline, labels)) {
    if (!all.empty()) all += ",\n";
    all += row.substr(1, row.size() - 2);
  }
  return fmt::format("{{\"traceEvents\":[{}],\"displayTimeUnit\":\"ms\"}}\n", all);
}

}  // namespace quatrain
