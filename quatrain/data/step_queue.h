// SPDX-License-Identifier: Apache-2.0
// Steps read ahead by one helper thread, which sees plain numbers only: tensors are made where they
// are used, so that their memory belongs to the reader's rank.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace quatrain {

// Rows of one micro-batch, each [B, T] (sample_ids [B]) and row-major.
struct BatchRows {
  std::vector<std::int64_t> tokens, labels, positions, documents, sample_ids;
  std::int64_t trained_tokens = 0;
};
using StepRows = std::vector<BatchRows>;

class StepQueue {
 public:
  // `read` is called from the helper thread, or from get() when `ahead` is 0.
  StepQueue(std::function<StepRows(std::int64_t)> read, int ahead);
  ~StepQueue();
  StepQueue(const StepQueue&) = delete;
  StepQueue& operator=(const StepQueue&) = delete;

  // The rows of `step`; fast when steps are asked for in order. Rethrows what reading threw.
  StepRows get(std::int64_t step);

 private:
  struct Result {
    StepRows rows;
    std::exception_ptr error;
  };
  void work();

  std::function<StepRows(std::int64_t)> read_;
  std::size_t ahead_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Result> ready_;
  std::int64_t expected_ = -1;  // step of ready_.front(); -1: none asked for yet
  std::int64_t next_ = 0;       // step that the helper reads next
  int generation_ = 0;          // counts jumps: results of before are dropped
  bool stop_ = false;
  std::thread helper_;
};

}  // namespace quatrain
