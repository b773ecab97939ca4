// SPDX-License-Identifier: Apache-2.0
// Locks: a rank that goes to sleep holds the job's lock while it looks for a deadlock, and names
// waits under it; who opens or ends an operation takes it only when somebody sleeps on that one.
#include "quatrain/comm/thread/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "quatrain/base/error.h"

namespace quatrain {
namespace {

using std::chrono::steady_clock;

constexpr std::int64_t kInlineBytes = 16 << 10;
// How long an open operation is left to ranks that may wait for it, and how often in a row a
// progress thread looks again before it sleeps until it is called: to call it costs the caller 2
// us. Where ranks fill the cores it takes one of them from its rank, for which all others then
// wait: two ranks on two cores train 6 to 12 % faster if it leaves them alone for as long as a
// layer takes, and a rank that waits moves the bytes meanwhile.
constexpr std::chrono::microseconds kGrace{100}, kGraceOnFullCores{20'000};
constexpr int kLooks = 20;

int cores() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

}  // namespace

ThreadJob::ThreadJob(int ranks, const ThreadOptions& options)
    : options_(options),
      polls_(ranks <= cores()),
      grace_(ranks < cores() ? kGrace : kGraceOnFullCores),
      ranks_(static_cast<std::size_t>(ranks)) {
  // One a rank where cores are left over; one in all where ranks fill them.
  const int threads = ranks == 1 ? 0 : std::clamp(cores() - ranks, 1, ranks);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { progress(); });
}

ThreadJob::~ThreadJob() {
  {
    const std::lock_guard lock(progress_mutex_);
    stopping_ = true;
  }
  untaken_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadJob::fail(std::exception_ptr error, std::string text) {
  const std::lock_guard lock(mutex_);
  fail_locked(std::move(error), std::move(text));
}

void ThreadJob::fail_locked(std::exception_ptr error, std::string text) {
  if (failed_) return;
  error_ = std::move(error);
  text_ = std::move(text);
  failed_ = true;
  for (Rank& rank : ranks_) rank.wake.notify_all();
}

void ThreadJob::throw_if_failed() const {
  if (!failed()) return;
  const std::lock_guard lock(mutex_);
  throw CommError(text_);
}

std::exception_ptr ThreadJob::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void ThreadJob::leave(int rank) {
  const std::lock_guard lock(mutex_);
  ranks_[static_cast<std::size_t>(rank)].gone = true;
  fail_if_deadlocked();
}

void ThreadJob::start(const std::shared_ptr<ThreadOperation>& operation) {
  if (operation->bytes() <= kInlineBytes) {
    operation->run_all();
    return wake(*operation);
  }
  operation->open();
  wake(*operation);
  if (threads_.empty()) return;
  const std::lock_guard lock(progress_mutex_);
  open_.push_back(operation);
  if (asleep_ > 0) untaken_.notify_one();
}

bool ThreadJob::help(ThreadOperation& operation, int member) {
  const std::optional<int> part = operation.claim(member);
  if (!part) return false;
  operation.run(*part);
  if (operation.done()) wake(operation);
  return true;
}

void ThreadJob::wake(ThreadOperation& operation) {
  if (operation.sleepers.load() == 0) return;
  const std::lock_guard lock(mutex_);
  for (int member : operation.members()) {
    Rank& rank = ranks_[static_cast<std::size_t>(member)];
    if (rank.operation == &operation) rank.wake.notify_all();
  }
}

// Polls for a while; true when there is something to do.
bool ThreadJob::poll(const ThreadOperation& operation, Work::Deadline deadline) const {
  if (!polls_) return !operation.idle();
  const Work::Deadline end = std::min(deadline, steady_clock::now() + options_.spin);
  do {
    for (int i = 0; i < 32; ++i) {
      if (!operation.idle() || failed()) return true;
      relax_cpu();
    }
  } while (steady_clock::now() < end);
  return false;
}

void ThreadJob::await(int rank, ThreadOperation& operation, const ThreadWait& wait,
                      Work::Deadline deadline) {
  if (poll(operation, deadline)) return;
  std::unique_lock lock(mutex_);
  Rank& me = ranks_[static_cast<std::size_t>(rank)];
  me.operation = &operation;
  me.wait = &wait;
  ++operation.sleepers;
  fail_if_deadlocked();
  const auto over = [&] { return failed() || !operation.idle(); };
  if (deadline == Work::kNever) {
    me.wake.wait(lock, over);
  } else {
    me.wake.wait_until(lock, deadline, over);
  }
  --operation.sleepers;
  me.operation = nullptr;
  me.wait = nullptr;
}

void ThreadJob::fail_if_deadlocked() {
  if (!options_.detect_deadlock || failed()) return;
  const auto stuck = [](const Rank& rank) {
    return rank.gone || (rank.operation != nullptr && rank.operation->stuck());
  };
  const auto gone = [](const Rank& rank) { return rank.gone; };
  if (std::ranges::all_of(ranks_, gone) || !std::ranges::all_of(ranks_, stuck)) return;
  std::string text = "deadlock: every rank waits";
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Rank& each = ranks_[rank];
    text += fmt::format("\n  rank {}: {}", rank, each.gone ? "has ended" : each.wait->text());
  }
  fail_locked(std::make_exception_ptr(CommError(text)), text);
}

void ThreadJob::progress() {
  std::unique_lock lock(progress_mutex_);
  int looks = 0;
  while (!stopping_) {
    if (open_.empty() && looks == 0) {
      ++asleep_;
      untaken_.wait(lock, [this] { return stopping_ || !open_.empty(); });
      --asleep_;
      looks = kLooks;
    }
    untaken_.wait_for(lock, grace_, [this] { return stopping_; });
    looks = open_.empty() ? looks - 1 : kLooks;
    while (const std::shared_ptr<ThreadOperation> operation = next_untaken()) {
      lock.unlock();
      while (help(*operation, 0)) {
      }
      lock.lock();
    }
  }
}

// The first operation with a part that nobody has begun; those before it are done with.
std::shared_ptr<ThreadOperation> ThreadJob::next_untaken() {
  while (!stopping_ && !open_.empty()) {
    if (open_.front()->has_unclaimed()) return open_.front();
    open_.pop_front();
  }
  return nullptr;
}

}  // namespace quatrain
