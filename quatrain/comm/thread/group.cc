// SPDX-License-Identifier: Apache-2.0
// The job is never called under the group's lock: it takes that lock to name waits.
#include "quatrain/comm/thread/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "quatrain/base/error.h"

namespace quatrain {
namespace {

std::size_t at(int member) { return static_cast<std::size_t>(member); }

ThreadGroup::Lane lane_of(std::vector<int> members) {
  ThreadGroup::Lane lane;
  lane.calls.assign(members.size(), 0);
  lane.members = std::move(members);
  return lane;
}

ThreadOperation& next_of(ThreadGroup::Lane& lane, int member) {
  const std::int64_t number = ++lane.calls[at(member)];
  while (lane.first + static_cast<std::int64_t>(lane.waiting.size()) <= number) {
    const std::int64_t sequence = lane.first + static_cast<std::int64_t>(lane.waiting.size());
    lane.waiting.push_back(std::make_shared<ThreadOperation>(lane.members, sequence));
  }
  return *lane.waiting[static_cast<std::size_t>(number - lane.first)];
}

[[noreturn]] void fail(ThreadJob& job, const std::string& text) {
  job.fail(std::make_exception_ptr(CommError(text)), text);
  throw CommError(text);
}

}  // namespace

ThreadGroup::ThreadGroup(std::string_view name, std::span<const int> world_ranks)
    : name_(name), ranks_(world_ranks.begin(), world_ranks.end()), collectives_(lane_of(ranks_)) {}

ThreadGroup::Lane& ThreadGroup::messages(int from, int to) {
  const std::lock_guard lock(mutex_);
  const auto found = messages_.find({from, to});
  if (found != messages_.end()) return found->second;
  return messages_.emplace(std::pair(from, to), lane_of({ranks_[at(from)], ranks_[at(to)]}))
      .first->second;
}

std::string ThreadGroup::where(Operation operation, std::int64_t sequence) const {
  return quatrain::where("thread", operation, sequence, name_, ranks_);
}

std::shared_ptr<ThreadOperation> ThreadGroup::join(ThreadJob& job, Lane& lane, int member,
                                                   ThreadCall call) {
  std::shared_ptr<ThreadOperation> operation;
  std::string mismatch;
  bool complete = false;
  {
    const std::lock_guard lock(mutex_);
    const std::int64_t sequence = next_of(lane, member).sequence();
    operation = lane.waiting[static_cast<std::size_t>(sequence - lane.first)];
    if (const std::optional<int> other = operation->join(member, call)) {
      mismatch =
          fmt::format("{}: rank {} calls {}, but rank {} calls {}", where(call.operation, sequence),
                      lane.members[at(member)], to_string(call), lane.members[at(*other)],
                      to_string(operation->call(*other)));
    }
    complete = mismatch.empty() && operation->all_joined();
    while (!lane.waiting.empty() && lane.waiting.front()->all_joined()) {
      lane.waiting.pop_front();
      ++lane.first;
    }
  }
  if (!mismatch.empty()) fail(job, mismatch);
  if (complete) job.start(operation);
  return operation;
}

std::vector<int> ThreadGroup::missing(const ThreadOperation& operation) const {
  std::vector<int> ranks;
  const std::lock_guard lock(mutex_);
  for (int member : operation.missing()) {
    const int world_rank = operation.members()[at(member)];
    ranks.push_back(static_cast<int>(std::ranges::find(ranks_, world_rank) - ranks_.begin()));
  }
  return ranks;
}

void ThreadGroup::withdraw(ThreadOperation& operation, int member) {
  {
    const std::lock_guard lock(mutex_);
    if (!operation.all_joined()) return operation.leave(member);
  }
  operation.cancel();
}

ThreadGroup& ThreadGroup::make(ThreadJob& job, int rank, std::span<const int> ranks,
                               std::string_view name) {
  std::vector<int> world_ranks;
  for (int each : ranks) world_ranks.push_back(ranks_[at(each)]);
  ThreadGroup* group = nullptr;
  {
    const std::lock_guard lock(mutex_);
    Made& made = made_[world_ranks];
    const std::size_t number = made.count[rank]++;
    if (number == made.groups.size()) {
      made.groups.push_back(std::make_unique<ThreadGroup>(name, world_ranks));
    }
    group = made.groups[number].get();
  }
  if (group->name() != name) {
    fail(job, fmt::format("thread group on {} {{{}}}: rank {} makes \"{}\" of ranks {{{}}}, where "
                          "another made \"{}\"",
                          name_, fmt::join(ranks_, ", "), ranks_[at(rank)], name,
                          fmt::join(world_ranks, ", "), group->name()));
  }
  return *group;
}

}  // namespace quatrain
