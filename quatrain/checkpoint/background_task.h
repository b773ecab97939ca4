// SPDX-License-Identifier: Apache-2.0
// One thing at a time done by another thread. All members belong to the owner's thread.
#pragma once
#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "quatrain/checkpoint/exchange.h"

namespace quatrain {

class BackgroundTask {
 public:
  BackgroundTask() = default;
  ~BackgroundTask() { wait(); }
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  // The one before has been taken. What `f` reads and writes is the task's until done().
  void start(std::function<void()> f) {
    done_ = false;
    thread_ = std::thread([this, f = std::move(f)] {
      failure_ = attempt(f);
      done_ = true;
    });
  }
  void run_here(const std::function<void()>& f) { failure_ = attempt(f); }

  bool done() const { return done_; }
  void wait() {
    if (thread_.joinable()) thread_.join();
  }
  // Waits; what `f` threw, once.
  Failure take() {
    wait();
    return std::exchange(failure_, {});
  }

 private:
  std::thread thread_;
  std::atomic<bool> done_{true};
  Failure failure_;
};

}  // namespace quatrain
