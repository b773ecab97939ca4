// SPDX-License-Identifier: Apache-2.0
// Why our own lock and MPI_THREAD_SERIALIZED: MPI_THREAD_MULTIPLE has the same speed (0.6 us for 4
// bytes either way) but locks each call inside a message's progress as well, and an operation's
// state needs our lock anyhow. Why point-to-point messages: MPI's non-blocking collectives neither
// say who is missing nor sum in an order of ours, and progress only inside calls of MPI as these
// do.
#include "quatrain/comm/mpi/engine.h"

#include <algorithm>
#include <utility>

#include "quatrain/base/error.h"
#include "quatrain/comm/describe.h"

namespace quatrain {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// What a rank that waits does between two looks. With a core of its own it spins for as long as a
// step's imbalance may last, and then naps; otherwise it hands the core over at once.
class Pause {
 public:
  explicit Pause(bool own_core) : own_core_(own_core), busy_(own_core ? 3000 : 30) {}
  void reset() { idle_since_ = Clock::time_point(); }
  void operator()(Clock::time_point now) {
    if (idle_since_ == Clock::time_point()) {
      idle_since_ = now;
      nap_ = kShortest;
    }
    if (now - idle_since_ < busy_) {
      if (!own_core_) std::this_thread::yield();
      return;
    }
    std::this_thread::sleep_for(nap_);
    nap_ = std::min(2 * nap_, own_core_ ? microseconds(100) : microseconds(500));
  }

 private:
  static constexpr microseconds kShortest{20};
  const bool own_core_;
  const microseconds busy_;
  Clock::time_point idle_since_;
  microseconds nap_ = kShortest;
};

// Naps of the engine's thread, which shares its core with the rank's computation.
constexpr microseconds kShortestNap{50};
constexpr microseconds kLongestNap{400};
// A rank that has just communicated will do so again: no waking is needed for that long.
constexpr milliseconds kStaysUp{20};

struct Counted {
  explicit Counted(std::atomic<int>& count) : count_(count) { ++count_; }
  ~Counted() { --count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  std::atomic<int>& count_;
};

}  // namespace

MpiEngine::MpiEngine(MpiOptions options, bool own_core)
    : options_(std::move(options)), own_core_(own_core), thread_([this] { run(); }) {}

MpiEngine::~MpiEngine() {
  stop_ = true;
  {
    const std::lock_guard lock(mutex_);
    wake_.notify_one();
  }
  thread_.join();
}

const MpiLink& MpiEngine::keep(std::unique_ptr<MpiLink> link) {
  const std::lock_guard lock(mutex_);
  links_.push_back(std::move(link));
  return *links_.back();
}

void MpiEngine::start(const MpiOperationPtr& operation) {
  const std::lock_guard lock(mutex_);
  operation->advance();
  if (operation->settled()) return;
  active_.push_back(operation);
  if (asleep_) wake_.notify_one();
}

bool MpiEngine::progress() {
  bool moved = false;
  for (const MpiOperationPtr& operation : active_) moved = operation->advance() || moved;
  std::erase_if(active_, [](const MpiOperationPtr& operation) { return operation->settled(); });
  return moved;
}

bool MpiEngine::wait_until(const MpiOperation& operation, Work::Deadline deadline) {
  if (!operation.finished() && !move_until(operation, deadline)) return false;
  if (!operation.failure().empty()) {
    throw CommError(operation.where() + ": " + operation.failure());
  }
  return true;
}

bool MpiEngine::move_until(const MpiOperation& operation, Work::Deadline deadline) {
  const Counted waiting(waiting_);
  Pause pause(own_core_);
  Work::Deadline grace_end = Work::kNever;
  while (true) {
    std::unique_lock lock(mutex_);
    const bool moved = progress();
    lock.unlock();
    if (operation.finished()) return true;
    const Clock::time_point now = Clock::now();
    if (now >= deadline) return false;
    check_interrupt(operation, now, grace_end);
    if (moved) {
      pause.reset();
    } else {
      pause(now);
    }
  }
}

void MpiEngine::check_interrupt(const MpiOperation& operation, Clock::time_point now,
                                Work::Deadline& grace_end) {
  if (grace_end == Work::kNever) {
    if (options_.interrupted && options_.interrupted()) grace_end = now + options_.grace;
    return;
  }
  if (now < grace_end) return;
  throw CommError(operation.where() + ": interrupted, " + waits_for(absent(operation)));
}

std::vector<int> MpiEngine::absent(const MpiOperation& operation) {
  const std::lock_guard lock(mutex_);
  return operation.absent();
}

void MpiEngine::drain() {
  std::vector<MpiOperationPtr> operations;
  {
    const std::lock_guard lock(mutex_);
    operations = active_;
  }
  for (const MpiOperationPtr& operation : operations) {
    if (!operation->finished()) move_until(*operation, Work::kNever);
  }
}

bool MpiEngine::settle(milliseconds limit) {
  const Clock::time_point end = Clock::now() + limit;
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      progress();
      if (active_.empty()) return true;
    }
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(kShortestNap);
  }
}

void MpiEngine::run() {
  microseconds nap = kShortestNap;
  Clock::time_point last_active = Clock::now();
  while (!stop_) {
    bool moved = false;
    if (waiting_ == 0) {  // else the thread that waits looks after everything
      std::unique_lock lock(mutex_);
      const Clock::time_point now = Clock::now();
      if (!active_.empty()) last_active = now;
      if (now - last_active > kStaysUp) {
        asleep_ = true;
        wake_.wait(lock, [this] { return stop_ || !active_.empty(); });
        asleep_ = false;
        last_active = Clock::now();
      }
      moved = progress();
    }
    if (moved) {
      nap = kShortestNap;
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(nap);
      nap = std::min(2 * nap, kLongestNap);
    }
  }
}

}  // namespace quatrain
