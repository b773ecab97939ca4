// SPDX-License-Identifier: Apache-2.0
// What the members of one group share: the operations that some have called and others have not,
// and the groups made from this one. Thread-safe. Calls match by order: collectives by their number
// in the group, messages by their number from sender to receiver.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quatrain/comm/thread/job.h"

namespace quatrain {

class ThreadGroup {
 public:
  // A stream of operations of the same members, numbered from 1.
  struct Lane {
    std::vector<int> members;         // ranks of the world
    std::vector<std::int64_t> calls;  // so far, by member
    std::int64_t first = 1;           // number of the front of `waiting`
    std::deque<std::shared_ptr<ThreadOperation>> waiting;
  };

  ThreadGroup(std::string_view name, std::span<const int> world_ranks);

  const std::string& name() const { return name_; }
  std::span<const int> ranks() const { return ranks_; }
  int size() const { return static_cast<int>(ranks_.size()); }

  Lane& collectives() { return collectives_; }
  Lane& messages(int from, int to);  // members: the sender, the receiver

  // Joins the member's next operation of the lane and starts it when all have joined. A call that
  // does not fit an earlier member's fails the job: CommError naming both ranks and calls.
  std::shared_ptr<ThreadOperation> join(ThreadJob& job, Lane& lane, int member, ThreadCall call);
  // Ranks of this group that have not joined.
  std::vector<int> missing(const ThreadOperation& operation) const;
  // Takes the member's call back; returns when nobody touches its memory any more.
  void withdraw(ThreadOperation& operation, int member);

  // The group of these ranks of this one. The k-th that a rank makes of one list of ranks is its
  // peers' k-th; another name there fails the job. Does not wait for the peers.
  ThreadGroup& make(ThreadJob& job, int rank, std::span<const int> ranks, std::string_view name);

  std::string where(Operation operation, std::int64_t sequence) const;

 private:
  struct Made {
    std::vector<std::unique_ptr<ThreadGroup>> groups;  // in the order they were made
    std::map<int, std::size_t> count;                  // by rank
  };

  const std::string name_;
  const std::vector<int> ranks_;  // of the world
  mutable SpinMutex mutex_;       // of what follows, and of joining
  Lane collectives_;
  std::map<std::pair<int, int>, Lane> messages_;
  std::map<std::vector<int>, Made> made_;
};

}  // namespace quatrain
