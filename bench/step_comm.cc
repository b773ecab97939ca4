// SPDX-License-Identifier: Apache-2.0
#include "step_comm.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "quatrain/comm/decorator.h"

namespace quatrain {
namespace {

constexpr int kFlightLane = 10;  // after the engine's
constexpr int kWaitLane = 11;

class TimedState final : public Work::State {
 public:
  TimedState(Work work, CollectiveTimes& times, std::size_t place)
      : work_(std::move(work)), times_(times), place_(place) {}

  bool wait_until(Work::Deadline deadline) override {
    times_[place_].wait_us = steady_us();
    const bool done = work_.wait_until(deadline);
    times_[place_].done_us = steady_us();
    return done;
  }
  bool done() const override { return work_.done(); }
  std::vector<int> absent() const override { return work_.absent(); }

 private:
  Work work_;
  CollectiveTimes& times_;
  std::size_t place_;
};

std::int64_t bytes_of(const at::Tensor& x) {
  return x.defined() ? static_cast<std::int64_t>(x.nbytes()) : 0;
}

class Timed final : public Decorator {
 public:
  Timed(std::unique_ptr<Communicator> inner, CollectiveTimes& times)
      : Decorator(std::move(inner)), times_(times) {}

 private:
  Work run(const Call& call) override {
    const std::size_t place = times_.size();
    times_.push_back({.group = std::string(name()),
                      .operation = call.operation,
                      .bytes = std::max(bytes_of(call.in), bytes_of(call.out)),
                      .called_us = steady_us()});
    return Work(std::make_unique<TimedState>(forward(call), times_, place));
  }
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> group) override {
    return make_timed(std::move(group), times_);
  }

  CollectiveTimes& times_;
};

nlohmann::json lane_name(int rank, int lane, std::string_view text) {
  return {{"ph", "M"},
          {"name", "thread_name"},
          {"pid", rank},
          {"tid", lane},
          {"args", {{"name", text}}}};
}

}  // namespace

double steady_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

std::unique_ptr<Communicator> make_timed(std::unique_ptr<Communicator> inner,
                                         CollectiveTimes& times) {
  return std::make_unique<Timed>(std::move(inner), times);
}

double waited_s(const CollectiveTimes& times, std::size_t first, std::string_view group) {
  double sum_us = 0.0;
  for (std::size_t i = first; i < times.size(); ++i) {
    if (times[i].group == group) sum_us += times[i].done_us - times[i].wait_us;
  }
  return sum_us / 1e6;
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
