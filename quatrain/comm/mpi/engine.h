// SPDX-License-Identifier: Apache-2.0
// Makes the operations of one process move, from two sides. A thread that waits moves all of them
// itself; while nobody waits, a thread of the engine looks after them in short naps, so that
// operations progress behind computation. Nobody burns a core that another rank could use: see
// docs/communication.md for the figures.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "quatrain/comm/communicator.h"
#include "quatrain/comm/mpi/mpi.h"
#include "quatrain/comm/mpi/operation.h"

namespace quatrain {

class MpiEngine {
 public:
  // `own_core`: each rank of this host has a core, so a wait may spin.
  MpiEngine(MpiOptions options, bool own_core);
  ~MpiEngine();
  MpiEngine(const MpiEngine&) = delete;
  MpiEngine& operator=(const MpiEngine&) = delete;

  // Links live as long as the engine: operations refer to them.
  const MpiLink& keep(std::unique_ptr<MpiLink> link);
  // Posts the operation's messages and keeps it until it is done.
  void start(const MpiOperationPtr& operation);
  // False when the deadline passed first. Throws CommError when the operation failed, or when the
  // wait was interrupted and the operation did not end within the grace time.
  bool wait_until(const MpiOperation& operation, Work::Deadline deadline);
  std::vector<int> absent(const MpiOperation& operation);
  // Waits for every operation in flight; one that fails says so to its own waiter.
  void drain();
  // Waits for what is in flight, also of failed operations; false when something still is.
  bool settle(std::chrono::milliseconds limit);
  // All other calls of MPI are made under this lock.
  std::mutex& mutex() { return mutex_; }

 private:
  // As wait_until(), without looking at how it ended.
  bool move_until(const MpiOperation& operation, Work::Deadline deadline);
  bool progress();  // under the lock; true when something moved
  void run();       // the thread
  void check_interrupt(const MpiOperation& operation, Work::Deadline now,
                       Work::Deadline& grace_end);

  const MpiOptions options_;
  const bool own_core_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<MpiLink>> links_;
  std::vector<MpiOperationPtr> active_;
  bool asleep_ = false;          // the thread waits to be woken, and takes no naps
  std::atomic<int> waiting_{0};  // threads in wait_until()
  std::atomic<bool> stop_{false};
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace quatrain
