// SPDX-License-Identifier: Apache-2.0
#include "quatrain/comm/timed.h"

#include <algorithm>
#include <string>
#include <utility>

#include "quatrain/comm/decorator.h"

namespace quatrain {
namespace {

using Clock = std::chrono::steady_clock;

std::int64_t bytes_of(const at::Tensor& x) {
  return x.defined() ? static_cast<std::int64_t>(x.nbytes()) : 0;
}

class TimedState final : public Work::State {
 public:
  TimedState(Work work, std::string group, const Call& call, Clock::time_point began,
             const CommListener& listener)
      : work_(std::move(work)),
        group_(std::move(group)),
        operation_(call.operation),
        bytes_(std::max(bytes_of(call.in), bytes_of(call.out))),
        listener_(listener),
        began_(began) {}

  bool wait_until(Work::Deadline deadline) override {
    const Clock::time_point wait_began = Clock::now();
    const bool blocked = !work_.done();
    if (!work_.wait_until(deadline)) return false;
    if (listener_)
      listener_({group_, operation_, bytes_, began_, wait_began, Clock::now(), blocked});
    return true;
  }
  bool done() const override { return work_.done(); }
  std::vector<int> absent() const override { return work_.absent(); }

 private:
  Work work_;
  std::string group_;
  Operation operation_;
  std::int64_t bytes_;
  const CommListener& listener_;
  Clock::time_point began_;
};

class Timed final : public Decorator {
 public:
  Timed(std::unique_ptr<Communicator> inner, const CommListener& listener)
      : Decorator(std::move(inner)), listener_(listener) {}

 private:
  Work run(const Call& call) override {
    if (!listener_) return forward(call);
    const Clock::time_point began = Clock::now();
    return Work(
        std::make_unique<TimedState>(forward(call), std::string(name()), call, began, listener_));
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
