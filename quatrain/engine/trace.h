// SPDX-License-Identifier: Apache-2.0
// What one rank did and when: actions as they ran, in the clock's format, so that predicted and
// measured overlay; and their picture for a trace viewer.
#pragma once
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/comm/timed.h"
#include "quatrain/schedule/action.h"

namespace quatrain {

// kCompute: the rank's thread at work. kWait: the same thread, blocked on the action's message or
// collective. kGather, kReduce: ZeRO's collectives in flight, from their start to when they were
// found done; kTensor: those that layers start; kSend, kReceive: messages between stages.
enum class TraceLane : std::uint8_t { kCompute, kWait, kGather, kReduce, kTensor, kSend, kReceive };
std::string_view name(TraceLane lane);  // "compute", "wait", "gather", ...

struct TraceEvent {
  Action action;
  TraceLane lane;
  double begin_us;  // since the recorder was made
  double end_us;
  std::string what = {};  // the collective of a layer: "tp all_gather"
};

class TraceRecorder {
 public:
  double now_us() const { return us(std::chrono::steady_clock::now()); }
  void add(const Action& action, TraceLane lane, double begin_us);  // ends now
  // A layer's collective, and this thread's wait for it.
  void add(const Action& action, const CommTiming& timing);
  std::vector<TraceEvent> take();

 private:
  double us(std::chrono::steady_clock::time_point time) const {
    return std::chrono::duration<double, std::micro>(time - made_).count();
  }

  std::chrono::steady_clock::time_point made_ = std::chrono::steady_clock::now();
  std::vector<TraceEvent> events_;
};

// Time that the rank's thread stood still: for collectives, and for what other stages make, be it
// late or on its way.
double exposed_comm_ms(std::span<const TraceEvent> events);
double bubble_ms(std::span<const TraceEvent> events);

// One rank's rows of a Chrome trace, read by chrome://tracing and Perfetto: a process a rank, a
// thread a lane; complete events ("ph": "X"), microseconds. A JSON array.
std::string to_chrome_rows(std::span<const TraceEvent> events, int rank);
// Those events again.
std::vector<TraceEvent> from_chrome_rows(std::string_view rows);
// The document of all ranks' rows.
std::string to_chrome_json(std::span<const std::string> rows);

}  // namespace quatrain
