// SPDX-License-Identifier: Apache-2.0
// The life of an operation in flight.
#include <exception>
#include <utility>

#include "quatrain/base/log.h"
#include "quatrain/comm/communicator.h"

namespace quatrain {
namespace {

// Why: a destructor cannot throw, and a rank that unwinds leaves its operations behind rightly.
void report_if_forgotten(const Work::State* state) noexcept {
  if (state == nullptr || std::uncaught_exceptions() > 0) return;
  try {
    log_error("bug: a communication was dropped without wait()");
  } catch (...) {
  }
}

}  // namespace

Work::Work(std::unique_ptr<State> state) : state_(std::move(state)) {}

Work& Work::operator=(Work&& other) noexcept {
  if (this == &other) return *this;
  report_if_forgotten(state_.get());
  state_ = std::move(other.state_);
  return *this;
}

Work::~Work() { report_if_forgotten(state_.get()); }

void Work::wait() { (void)wait_until(kNever); }

bool Work::wait_until(Deadline deadline) {
  if (!state_) return true;
  std::unique_ptr<State> state = std::move(state_);  // gone when the wait throws
  const bool done = state->wait_until(deadline);
  if (!done) state_ = std::move(state);
  return done;
}

bool Work::done() const { return !state_ || state_->done(); }

std::vector<int> Work::absent() const { return state_ ? state_->absent() : std::vector<int>(); }

}  // namespace quatrain
