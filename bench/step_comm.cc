// SPDX-License-Identifier: Apache-2.0
#include "step_comm.h"

#include <chrono>
#include <nlohmann/json.hpp>

namespace quatrain {
namespace {

constexpr int kFlightLane = 10;  // after the engine's
constexpr int kWaitLane = 11;

double us(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration<double, std::micro>(time.time_since_epoch()).count();
}

nlohmann::json lane_name(int rank, int lane, std::string_view text) {
  return {{"ph", "M"},
          {"name", "thread_name"},
          {"pid", rank},
          {"tid", lane},
          {"args", {{"name", text}}}};
}

}  // namespace

double steady_us() { return us(std::chrono::steady_clock::now()); }

CommListener into(CollectiveTimes& times) {
  return [&times](const CommTiming& t) {
    times.push_back(
        {std::string(t.group), t.operation, t.bytes, us(t.began), us(t.wait_began), us(t.ended)});
  };
}

std::string to_chrome_rows(const CollectiveTimes& times, std::size_t first, int rank) {
  nlohmann::json rows = nlohmann::json::array();
  rows.push_back(lane_name(rank, kFlightLane, "collectives in flight"));
  rows.push_back(lane_name(rank, kWaitLane, "waits for collectives"));
  for (std::size_t i = first; i < times.size(); ++i) {
    const TimedCollective& t = times[i];
    const auto row = [&](int lane, std::string_view kind, double begin_us) {
      rows.push_back({{"ph", "X"},
                      {"name", t.group + " " + std::string(name(t.operation))},
                      {"cat", kind},
                      {"pid", rank},
                      {"tid", lane},
                      {"ts", begin_us},
                      {"dur", t.done_us - begin_us},
                      {"args", {{"bytes", t.bytes}}}});
    };
    row(kFlightLane, "flight", t.called_us);
    row(kWaitLane, "wait", t.wait_us);
  }
  return rows.dump();
}

}  // namespace quatrain
