// SPDX-License-Identifier: Apache-2.0
// Work over threads whose results come back in the order in which it was given, with a bound on
// what is in flight.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace quatrain {

template <class Result>
class OrderedPool {
 public:
  // take(result) runs on the thread that calls give() and drain().
  OrderedPool(int threads, std::function<void(Result)> take) : take_(std::move(take)) {
    most_ = 4 * static_cast<std::size_t>(threads);
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~OrderedPool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  OrderedPool(const OrderedPool&) = delete;
  OrderedPool& operator=(const OrderedPool&) = delete;

  void give(std::function<Result()> job) {
    while (in_order_.size() >= most_) take_front();
    auto slot = std::make_shared<Slot>();
    slot->job = std::move(job);
    in_order_.push_back(slot);
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(slot));
    }
    changed_.notify_all();
  }
  // Takes all that is in flight. Rethrows, like give(), what a job threw.
  void drain() {
    while (!in_order_.empty()) take_front();
  }

 private:
  struct Slot {
    std::function<Result()> job;
    Result result{};
    std::exception_ptr error;
    bool done = false;
  };

  void take_front() {
    const std::shared_ptr<Slot> slot = std::move(in_order_.front());
    in_order_.pop_front();
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return slot->done; });
    }
    if (slot->error) std::rethrow_exception(slot->error);
    take_(std::move(slot->result));
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
      if (stop_) return;
      const std::shared_ptr<Slot> slot = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      try {
        slot->result = slot->job();
      } catch (...) {
        slot->error = std::current_exception();
      }
      slot->job = nullptr;
      lock.lock();
      slot->done = true;
      changed_.notify_all();
    }
  }

  std::function<void(Result)> take_;
  std::size_t most_ = 0;
  std::deque<std::shared_ptr<Slot>> in_order_;  // the caller's thread only
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Slot>> waiting_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace quatrain
