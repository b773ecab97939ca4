// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/row_runner.h"

#include <utility>

#include "quatrain/kernels/check.h"
#include "quatrain/schedule/action_index.h"

namespace quatrain {
namespace {

StageEnd end_of(const Action& action) {
  const bool forward = action.kind == ActionKind::kForward || is_forward_message(action.kind);
  return {action.stage, action.microbatch.value_or(-1), forward};
}
auto key(const StageEnd& end) { return std::tuple(end.stage, end.microbatch, end.forward); }

bool needs_input(const Action& action) {
  return is_computation(action.kind) && action.kind != ActionKind::kBackwardWeight;
}

}  // namespace

void RowRunner::run(std::span<const Action> row) {
  for (const Action& action : row) {
    CHECK(pipeline_.holds(action.stage), "{}: this rank has no such stage", to_string(action));
    step(action);
    finish_sends(false);
  }
}

void RowRunner::step(const Action& action) {
  switch (action.kind) {
    case ActionKind::kRecvForward:
    case ActionKind::kRecvBackward:
      return receive(action);
    case ActionKind::kSendForward:
    case ActionKind::kSendBackward:
      return send(action);
    default:
      if (needs_input(action)) ensure_input(end_of(action));
      return stages_.run(action);
  }
}

void RowRunner::receive(const Action& action) {
  CHECK(pipeline_.has_lane(action), "{}: there is no rank to receive from", to_string(action));
  const StageEnd end = end_of(action);
  const bool posted = receives_.contains(key(end));
  if (posted && started_again_) return;  // by the first run of the row
  CHECK(!posted && !given_.contains(key(end)), "{}: received already", to_string(action));
  at::Tensor slot = stages_.slot(end);
  const double began_us = trace_.now_us();
  Work work = pipeline_.recv(action, slot);
  receives_.try_emplace(key(end), Message{action, std::move(slot), std::move(work), began_us});
}

void RowRunner::send(const Action& action) {
  CHECK(pipeline_.has_lane(action), "{}: there is no rank to send to", to_string(action));
  at::Tensor x = take(end_of(action));
  const double began_us = trace_.now_us();
  Work work = pipeline_.send(action, x);
  sends_.push_back({action, std::move(x), std::move(work), began_us});
}

// A stage without layers passes on what it is given.
at::Tensor RowRunner::take(const StageEnd& end) {
  ensure_input(end);
  return stages_.take(end);
}

void RowRunner::ensure_input(const StageEnd& end) {
  const bool from_outside = end.forward ? end.stage == 0 : pipeline_.is_last(end.stage);
  if (from_outside || !given_.insert(key(end)).second) return;
  const int neighbour = end.forward ? end.stage - 1 : end.stage + 1;
  if (pipeline_.holds(neighbour)) {
    stages_.give(end, take({neighbour, end.microbatch, end.forward}));
  } else {
    stages_.give(end, received(end));
  }
}

at::Tensor RowRunner::received(const StageEnd& end) {
  auto node = receives_.extract(key(end));
  CHECK(!node.empty(), "stage {}, micro-batch {}: nothing was received for its {}", end.stage,
        end.microbatch, end.forward ? "forward" : "backward");
  wait(node.mapped(), TraceLane::kReceive);
  return std::move(node.mapped().x);
}

void RowRunner::wait(Message& message, TraceLane lane) {
  const bool blocks = !message.work.done();
  const double began_us = trace_.now_us();
  message.work.wait();
  if (blocks) trace_.add(message.action, TraceLane::kWait, began_us);
  trace_.add(message.action, lane, message.began_us);
}

// Those that are done, in any order: lanes do not wait for each other.
void RowRunner::finish_sends(bool all) {
  for (auto send = sends_.begin(); send != sends_.end();) {
    if (!all && !send->work.done()) {
      ++send;
      continue;
    }
    wait(*send, TraceLane::kSend);
    send = sends_.erase(send);
  }
}

void RowRunner::start_again(std::span<const Action> lost) {
  for (const Action& action : lost) {
    const StageEnd end = end_of(action);
    if (given_.contains(key(end))) continue;
    if (!receives_.contains(key(end))) receive(action);
    (void)received(end);
  }
  given_.clear();
  finish_sends(true);
  started_again_ = true;
}

void RowRunner::finish() {
  CHECK(receives_.empty(), "{} is received and not used",
        to_string(receives_.begin()->second.action));
  finish_sends(true);
}

}  // namespace quatrain
