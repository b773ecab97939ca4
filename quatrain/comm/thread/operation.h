// SPDX-License-Identifier: Apache-2.0
// One operation of a group of thread ranks, from the first member's call to the last part's end.
// It holds no tensor: each member's Work does, and withdraws the call before it lets go of them.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quatrain/comm/thread/part.h"
#include "quatrain/comm/thread/spin_mutex.h"

namespace quatrain {

class ThreadOperation {
 public:
  // `members`: ranks of the world, by member; outlives this.
  ThreadOperation(std::span<const int> members, std::int64_t sequence);

  std::int64_t sequence() const { return sequence_; }
  std::span<const int> members() const { return members_; }
  const ThreadCall& call(int member) const { return calls_[at(member)]; }

  // Joining: the caller holds the group's lock.
  // The member whose call does not fit this one, if any; else `call` is moved from.
  std::optional<int> join(int member, ThreadCall& call);
  bool all_joined() const { return joined_ == members_.size(); }
  // Members that have not joined; where there are none, those that have left again.
  std::vector<int> missing() const;
  void leave(int member);  // before all have joined: they never will

  // Running: once all have joined, whoever joined last calls run_all() or open().
  void run_all();                           // every part, here and now
  void open();                              // to any thread
  std::optional<int> claim(int preferred);  // a part that nobody has begun
  void run(int part);                       // a claimed part; its end is noted
  // No further part begins; returns when none is running.
  void cancel();

  bool opened() const { return stage_.load() != Stage::kJoining; }
  bool done() const { return stage_.load() == Stage::kDone; }
  bool stuck() const { return !opened() || (cancelled_.load() && !done()); }
  std::int64_t bytes() const { return bytes_moved(calls_); }
  // Nothing to do here for a thread that waits: not all have joined, or every part is taken.
  bool idle() const;
  bool has_unclaimed() const { return unclaimed_.load(std::memory_order_relaxed) > 0; }

  std::atomic<int> sleepers{0};  // ranks asleep until something changes here

 private:
  enum class Stage : std::uint8_t { kJoining, kOpen, kDone };
  enum class Presence : std::uint8_t { kAwaited, kJoined, kLeft };
  static std::size_t at(int member) { return static_cast<std::size_t>(member); }
  std::vector<int> members_that(Presence presence) const;

  std::span<const int> members_;
  std::int64_t sequence_;
  std::vector<ThreadCall> calls_;
  std::vector<Presence> presence_;
  std::size_t joined_ = 0;

  std::atomic<Stage> stage_{Stage::kJoining};
  std::atomic<int> unclaimed_{0};
  std::atomic<bool> cancelled_{false};
  SpinMutex mutex_;  // of what follows
  std::vector<char> taken_;
  int running_ = 0;
  int remaining_ = 0;
};

}  // namespace quatrain
