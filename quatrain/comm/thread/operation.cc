// SPDX-License-Identifier: Apache-2.0
// Stages change with sequential consistency: a rank that goes to sleep counts itself in `sleepers`
// and looks at the stage again, whoever changes the stage looks at `sleepers` afterwards; one of
// the two sees the other.
#include "quatrain/comm/thread/operation.h"

#include <thread>
#include <utility>

namespace quatrain {

ThreadOperation::ThreadOperation(std::span<const int> members, std::int64_t sequence)
    : members_(members),
      sequence_(sequence),
      calls_(members.size()),
      presence_(members.size(), Presence::kAwaited),
      taken_(members.size(), 0),
      remaining_(static_cast<int>(members.size())) {}

std::optional<int> ThreadOperation::join(int member, ThreadCall& call) {
  for (int other = 0; other < static_cast<int>(members_.size()); ++other) {
    const bool there = presence_[at(other)] == Presence::kJoined;
    if (there && !fit(calls_[at(other)], other, call, member)) return other;
  }
  calls_[at(member)] = std::move(call);
  presence_[at(member)] = Presence::kJoined;
  ++joined_;
  return std::nullopt;
}

std::vector<int> ThreadOperation::members_that(Presence presence) const {
  std::vector<int> members;
  for (int member = 0; member < static_cast<int>(members_.size()); ++member) {
    if (presence_[at(member)] == presence) members.push_back(member);
  }
  return members;
}

// Why not those that have left as well: of ranks whose waits end together, as a timeout's do, the
// last would accuse the first.
std::vector<int> ThreadOperation::missing() const {
  std::vector<int> awaited = members_that(Presence::kAwaited);
  return awaited.empty() ? members_that(Presence::kLeft) : awaited;
}

void ThreadOperation::leave(int member) {
  presence_[at(member)] = Presence::kLeft;
  --joined_;
}

void ThreadOperation::run_all() {
  const int parts = static_cast<int>(members_.size());
  {
    const std::lock_guard lock(mutex_);
    stage_.store(Stage::kOpen);
    if (cancelled_) return;
    running_ = parts;
  }
  for (int part = 0; part < parts; ++part) run_part(calls_, part);
  const std::lock_guard lock(mutex_);
  running_ = 0;
  stage_.store(Stage::kDone);
}

void ThreadOperation::open() {
  const std::lock_guard lock(mutex_);
  if (!cancelled_) unclaimed_.store(static_cast<int>(members_.size()));
  stage_.store(Stage::kOpen);
}

std::optional<int> ThreadOperation::claim(int preferred) {
  if (!opened() || unclaimed_.load() == 0) return std::nullopt;
  const std::lock_guard lock(mutex_);
  if (cancelled_ || unclaimed_.load() == 0) return std::nullopt;
  int part = preferred;
  for (int next = 0; taken_[at(part)] != 0; ++next) part = next;
  taken_[at(part)] = 1;
  unclaimed_.store(unclaimed_.load() - 1);
  ++running_;
  return part;
}

void ThreadOperation::run(int part) {
  run_part(calls_, part);
  const std::lock_guard lock(mutex_);
  --running_;
  if (--remaining_ == 0) stage_.store(Stage::kDone);
}

void ThreadOperation::cancel() {
  std::unique_lock lock(mutex_);
  cancelled_ = true;
  unclaimed_ = 0;
  // Why no condition: this is the way out of a failed job, and a part is soon over.
  while (running_ > 0) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
}

bool ThreadOperation::idle() const {
  const Stage stage = stage_.load();
  return stage == Stage::kJoining || (stage == Stage::kOpen && unclaimed_.load() == 0);
}

}  // namespace quatrain
