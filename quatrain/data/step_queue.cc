// SPDX-License-Identifier: Apache-2.0
// The helper thread of a loader.
#include "quatrain/data/step_queue.h"

#include <utility>

namespace quatrain {

StepQueue::StepQueue(std::function<StepRows(std::int64_t)> read, int ahead)
    : read_(std::move(read)), ahead_(ahead > 0 ? static_cast<std::size_t>(ahead) : 0) {}

StepQueue::~StepQueue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (helper_.joinable()) helper_.join();
}

StepRows StepQueue::get(std::int64_t step) {
  if (ahead_ == 0) return read_(step);
  std::unique_lock lock(mutex_);
  if (step != expected_) {
    ++generation_;
    ready_.clear();
    next_ = step;
  }
  if (!helper_.joinable()) helper_ = std::thread([this] { work(); });
  expected_ = step + 1;
  changed_.notify_all();
  changed_.wait(lock, [&] { return !ready_.empty(); });
  Result result = std::move(ready_.front());
  ready_.pop_front();
  lock.unlock();
  changed_.notify_all();
  if (result.error) std::rethrow_exception(result.error);
  return std::move(result.rows);
}

void StepQueue::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || ready_.size() < ahead_; });
    if (stop_) return;
    const std::int64_t step = next_++;
    const int generation = generation_;
    lock.unlock();
    Result result;
    try {
      result.rows = read_(step);
    } catch (...) {
      result.error = std::current_exception();
    }
    lock.lock();
    if (generation == generation_) ready_.push_back(std::move(result));
    changed_.notify_all();
  }
}

}  // namespace quatrain
