// SPDX-License-Identifier: Apache-2.0
// The failures of ranks that are threads of this process: the first cause first, one line for the
// others, and an end even where a rank does not come back.
#pragma once
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace quatrain::apps {

class Failures {
 public:
  // Once a rank has failed, the others have `grace` to leave. One that sleeps or hangs in a system
  // call cannot be stopped: the process then reports and ends without it.
  Failures(int ranks, std::chrono::milliseconds grace);
  ~Failures();
  Failures(const Failures&) = delete;
  Failures& operator=(const Failures&) = delete;

  // By each rank's thread, last thing: its exit code, or what it threw.
  void ended(int rank, int code);
  void failed(int rank, std::exception_ptr error);
  bool any();
  // When all ranks have ended: prints what failed and returns the job's exit code.
  int report();

 private:
  struct Failure {
    int rank;
    std::exception_ptr error;
  };
  int print() const;
  void watch(const std::stop_token& stop);

  const std::chrono::milliseconds grace_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<Failure> failures_;  // in order of time
  std::vector<bool> back_;         // by rank
  int code_ = 0;
  std::jthread watcher_;
};

}  // namespace quatrain::apps
