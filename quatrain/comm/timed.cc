// SPDX-License-Identifier: Apache-2.0
#include "quatrain/comm/timed.h"

#include <string>
#include <utility>

#include "quatrain/comm/decorator.h"

namespace quatrain {
namespace {

using Clock = std::chrono::steady_clock;

class TimedState final : public Work::State {
 public:
  TimedState(Work work, std::string group, Operation operation, const CommListener& listener)
      : work_(std::move(work)),
        group_(std::move(group)),
        operation_(operation),
        listener_(listener) {}

  bool wait_until(Work::Deadline deadline) override {
    const Clock::time_point wait_began = Clock::now();
    const bool blocked = !work_.done();
    if (!work_.wait_until(deadline)) return false;
    if (listener_) listener_({group_, operation_, began_, wait_began, Clock::now(), blocked});
    return true;
  }
  bool done() const override { return work_.done(); }
  std::vector<int> absent() const override { return work_.absent(); }

 private:
  Work work_;
  std::string group_;
  Operation operation_;
  const CommListener& listener_;
  Clock::time_point began_ = Clock::now();
};

class Timed final : public Decorator {
 public:
  Timed(std::unique_ptr<Communicator> inner, const CommListener& listener)
      : Decorator(std::move(inner)), listener_(listener) {}

 private:
  Work run(const Call& call) override {
    Work work = forward(call);
    if (!listener_) return work;
    return Work(std::make_unique<TimedState>(std::move(work), std::string(name()), call.operation,
                                             listener_));
  }
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> group) override {
    return make_timed(std::move(group), listener_);
  }

  const CommListener& listener_;
};

}  // namespace

std::unique_ptr<Communicator> make_timed(std::unique_ptr<Communicator> inner,
                                         const CommListener& listener) {
  return std::make_unique<Timed>(std::move(inner), listener);
}

}  // namespace quatrain
