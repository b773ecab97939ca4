// SPDX-License-Identifier: Apache-2.0
// One job of thread ranks: its first failure, who sleeps on what, and the threads that take on what
// no rank waits for. Thread-safe.
//
// A deadlock is seen by the last rank to fall asleep or to end: if then every rank left sleeps on
// an operation that not all members have called, nobody can call any more. A rank that was woken
// but has not run yet is no such sleeper: its operation was opened first.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "quatrain/comm/thread/operation.h"
#include "quatrain/comm/thread/thread.h"

namespace quatrain {

// What a rank waits for. The text is made when it is asked for.
class ThreadWait {
 public:
  virtual ~ThreadWait() = default;
  virtual std::string text() const = 0;  // "thread recv #1 on world {0, 1}: waits for rank 1"
};

class ThreadJob {
 public:
  ThreadJob(int ranks, const ThreadOptions& options);
  ~ThreadJob();
  ThreadJob(const ThreadJob&) = delete;
  ThreadJob& operator=(const ThreadJob&) = delete;

  int size() const { return static_cast<int>(ranks_.size()); }

  // The first call counts: `error` is the job's, and the others get `text`.
  void fail(std::exception_ptr error, std::string text);
  bool failed() const { return failed_.load(); }
  void throw_if_failed() const;
  std::exception_ptr error() const;  // null without a failure

  // The rank's thread calls no more.
  void leave(int rank);

  // After the last member has joined: small operations are done at once, others opened.
  void start(const std::shared_ptr<ThreadOperation>& operation);
  // Does the member's part, or another that nobody has begun; false when there is none.
  bool help(ThreadOperation& operation, int member);
  // Returns when the operation is no longer idle(), the job has failed or the deadline has passed.
  void await(int rank, ThreadOperation& operation, const ThreadWait& wait, Work::Deadline deadline);

 private:
  struct Rank {
    std::condition_variable wake;
    const ThreadOperation* operation = nullptr;  // asleep on it
    const ThreadWait* wait = nullptr;
    bool gone = false;
  };

  bool poll(const ThreadOperation& operation, Work::Deadline deadline) const;
  void wake(ThreadOperation& operation);
  void fail_locked(std::exception_ptr error, std::string text);
  void fail_if_deadlocked();

  void progress();  // of a progress thread
  std::shared_ptr<ThreadOperation> next_untaken();

  const ThreadOptions options_;
  const bool polls_;
  const std::chrono::microseconds grace_;  // for which progress threads leave operations alone
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;  // of what follows
  std::vector<Rank> ranks_;
  std::exception_ptr error_;
  std::string text_;

  std::mutex progress_mutex_;  // of what follows
  std::condition_variable untaken_;
  std::deque<std::shared_ptr<ThreadOperation>> open_;
  int asleep_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace quatrain
