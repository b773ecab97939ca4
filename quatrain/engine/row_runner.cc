// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/row_runner.h"

#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "quatrain/kernels/check.h"

namespace quatrain {
namespace {

bool is_computation(ActionKind kind) { return kind <= ActionKind::kBackward; }

class RowRunner {
 public:
  RowRunner(Pipeline& pipeline, StageWork& stages, TraceRecorder& trace)
      : pipeline_(pipeline), stages_(stages), trace_(trace) {}

  void step(const Action& action) {
    CHECK(pipeline_.holds(action.stage), "{}: this rank has no such stage", to_string(action));
    switch (action.kind) {
      case ActionKind::kRecvForward:
      case ActionKind::kRecvBackward:
        receive(action);
        break;
      case ActionKind::kSendForward:
      case ActionKind::kSendBackward:
        send(action);
        break;
      default:
        if (needs_input(action)) ensure_input(end_of(action));
        stages_.run(action);
    }
    finish_sends(false);
  }

  void finish() {
    CHECK(receives_.empty(), "{} is received and not used",
          to_string(receives_.begin()->second.action));
    finish_sends(true);
  }

 private:
  using Key = std::tuple<int, int, bool>;  // of a StageEnd
  struct Receive {
    Action action;
    at::Tensor slot;
    Work work;
    double began_us;
  };
  struct Send {
    Action action;
    at::Tensor x;
    Work work;
    double began_us;
  };

  static Key key(const StageEnd& end) { return {end.stage, end.microbatch, end.forward}; }
  static StageEnd end_of(const Action& action) {
    const bool forward = action.kind == ActionKind::kForward ||
                         action.kind == ActionKind::kSendForward ||
                         action.kind == ActionKind::kRecvForward;
    return {action.stage, action.microbatch.value_or(-1), forward};
  }
  static bool needs_input(const Action& action) {
    return is_computation(action.kind) && action.kind != ActionKind::kBackwardWeight;
  }

  void receive(const Action& action) {
    CHECK(pipeline_.has_lane(action), "{}: there is no rank to receive from", to_string(action));
    const StageEnd end = end_of(action);
    at::Tensor slot = stages_.slot(end);
    const double began_us = trace_.now_us();
    Work work = pipeline_.recv(action, slot);
    const bool added =
        receives_.try_emplace(key(end), Receive{action, slot, std::move(work), began_us}).second;
    CHECK(added, "{}: received already", to_string(action));
  }

  void send(const Action& action) {
    CHECK(pipeline_.has_lane(action), "{}: there is no rank to send to", to_string(action));
    at::Tensor x = take(end_of(action));
    const double began_us = trace_.now_us();
    Work work = pipeline_.send(action, x);
    sends_.push_back({action, std::move(x), std::move(work), began_us});
  }

  // A stage without layers passes on what it is given.
  at::Tensor take(const StageEnd& end) {
    ensure_input(end);
    return stages_.take(end);
  }

  // Of the stage that comes before on the way; the ends of the pipeline have none.
  bool has_neighbour(const StageEnd& end) const {
    return end.forward ? end.stage > 0 : !pipeline_.is_last(end.stage);
  }

  void ensure_input(const StageEnd& end) {
    if (!has_neighbour(end) || given_.contains(key(end))) return;
    given_.insert(key(end));
    const int neighbour = end.forward ? end.stage - 1 : end.stage + 1;
    if (pipeline_.holds(neighbour)) {
      stages_.give(end, take({neighbour, end.microbatch, end.forward}));
    } else {
      stages_.give(end, received(end));
    }
  }

  at::Tensor received(const StageEnd& end) {
    auto node = receives_.extract(key(end));
    CHECK(!node.empty(), "stage {}, micro-batch {}: nothing was received for its {}", end.stage,
          end.microbatch, end.forward ? "forward" : "backward");
    Receive& receive = node.mapped();
    wait(receive.work, receive.action);
    trace_.add(receive.action, TraceLane::kReceive, receive.began_us);
    return std::move(receive.slot);
  }

  void wait(Work& work, const Action& action) {
    const bool blocks = !work.done();
    const double began_us = trace_.now_us();
    work.wait();
    if (blocks) trace_.add(action, TraceLane::kWait, began_us);
  }

  // Those that are done, in any order: lanes do not wait for each other.
  void finish_sends(bool all) {
    for (auto send = sends_.begin(); send != sends_.end();) {
      if (!all && !send->work.done()) {
        ++send;
        continue;
      }
      wait(send->work, send->action);
      trace_.add(send->action, TraceLane::kSend, send->began_us);
      send = sends_.erase(send);
    }
  }

  Pipeline& pipeline_;
  StageWork& stages_;
  TraceRecorder& trace_;
  std::map<Key, Receive> receives_;  // posted, not yet used
  std::set<Key> given_;
  std::deque<Send> sends_;
};

}  // namespace

void run_row(const std::vector<Action>& row, Pipeline& pipeline, StageWork& stages,
             TraceRecorder& trace) {
  RowRunner runner(pipeline, stages, trace);
  for (const Action& action : row) runner.step(action);
  runner.finish();
}

}  // namespace quatrain
