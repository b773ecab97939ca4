// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/trace.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "quatrain/schedule/action_index.h"

namespace quatrain {
namespace {

constexpr std::array kLanes = {TraceLane::kCompute, TraceLane::kWait,   TraceLane::kGather,
                               TraceLane::kReduce,  TraceLane::kTensor, TraceLane::kSend,
                               TraceLane::kReceive};

nlohmann::ordered_json row_name(std::string_view kind, int rank, int lane, std::string_view text) {
  return {{"ph", "M"}, {"name", kind}, {"pid", rank}, {"tid", lane}, {"args", {{"name", text}}}};
}

}  // namespace

std::string_view name(TraceLane lane) {
  switch (lane) {
    case TraceLane::kCompute:
      return "compute";
    case TraceLane::kWait:
      return "wait";
    case TraceLane::kGather:
      return "gather";
    case TraceLane::kReduce:
      return "reduce";
    case TraceLane::kTensor:
      return "tensor";
    case TraceLane::kSend:
      return "send";
    case TraceLane::kReceive:
      return "receive";
  }
  return "?";
}

void TraceRecorder::add(const Action& action, TraceLane lane, double begin_us) {
  events_.push_back({action, lane, begin_us, now_us()});
}

void TraceRecorder::add(const Action& action, const CommTiming& timing) {
  const std::string what = std::string(timing.group) + " " + std::string(name(timing.operation));
  const double end_us = us(timing.ended);
  if (timing.blocked) {
    events_.push_back({action, TraceLane::kWait, us(timing.wait_began), end_us, what});
  }
  events_.push_back({action, TraceLane::kTensor, us(timing.began), end_us, what});
}

std::vector<TraceEvent> TraceRecorder::take() { return std::exchange(events_, {}); }

namespace {

double waited_ms(std::span<const TraceEvent> events, bool for_messages) {
  double sum_us = 0.0;
  for (const TraceEvent& event : events) {
    if (event.lane != TraceLane::kWait || is_message(event.action.kind) != for_messages) continue;
    sum_us += event.end_us - event.begin_us;
  }
  return sum_us / 1000.0;
}

}  // namespace

double exposed_comm_ms(std::span<const TraceEvent> events) { return waited_ms(events, false); }
double bubble_ms(std::span<const TraceEvent> events) { return waited_ms(events, true); }

std::string to_chrome_rows(std::span<const TraceEvent> events, int rank) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  list.push_back(row_name("process_name", rank, 0, "rank " + std::to_string(rank)));
  for (const TraceLane lane : kLanes) {
    list.push_back(row_name("thread_name", rank, static_cast<int>(lane), name(lane)));
  }
  for (const TraceEvent& event : events) {
    list.push_back(
        {{"ph", "X"},
         {"name", to_string(event.action) + (event.what.empty() ? "" : " ") + event.what},
         {"cat", name(event.lane)},
         {"pid", rank},
         {"tid", static_cast<int>(event.lane)},
         {"ts", event.begin_us},
         {"dur", event.end_us - event.begin_us}});
  }
  return list.dump();
}

std::vector<TraceEvent> from_chrome_rows(std::string_view rows) {
  std::vector<TraceEvent> events;
  for (const auto& row : nlohmann::json::parse(rows)) {
    if (row["ph"] != "X") continue;
    const auto text = row["name"].get<std::string>();
    const std::size_t space = std::min(text.find(' '), text.size());
    const auto begin_us = row["ts"].get<double>();
    events.push_back(
        {parse_action(text.substr(0, space)), TraceLane{row["tid"].get<std::uint8_t>()}, begin_us,
         begin_us + row["dur"].get<double>(), text.substr(std::min(space + 1, text.size()))});
  }
  return events;
}

std::string to_chrome_json(std::span<const std::string> rows) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const std::string& text : rows) {
    for (auto& row : nlohmann::ordered_json::parse(text)) all.push_back(std::move(row));
  }
  return nlohmann::ordered_json{{"traceEvents", all}, {"displayTimeUnit", "ms"}}.dump() + "\n";
}

}  // namespace quatrain
