// SPDX-License-Identifier: Apache-2.0
// Schedules of the table, lowered and then broken in one place.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>

#include "quatrain/schedule/blocking_test_support.h"
#include "quatrain/schedule/messages.h"

namespace quatrain {

struct Mutation {
  std::string text;  // what was done to what
  Schedule schedule;
};

class Mutator {
 public:
  explicit Mutator(unsigned seed) : engine_(seed) {}

  Mutation next() {
    const std::vector<ScheduleInfo> table = schedule_table();
    const ScheduleInfo& info = table[engine_() % table.size()];
    const int p = info.name == "dualpipe" ? 2 * number(1, 2) : number(2, 4);
    const int m = info.name.starts_with("dualpipe") ? 2 * p + 2 * number(0, 1) : number(1, 2 * p);
    const int v = info.max_chunks > 2 ? number(1, 3) : info.min_chunks;
    Schedule schedule =
        make_schedule(info.name, {.num_ranks = p, .num_microbatches = m, .chunks = v});
    if (number(0, 3) == 0) schedule = split_backward(schedule);
    schedule = with_messages(schedule);
    if (number(0, 1) == 0) schedule = with_tied_reduce(with_optimizer_step(schedule));
    const auto rank = engine_() % schedule.per_rank.size();
    const std::string where = std::string(info.name) + " p " + std::to_string(p) + " m " +
                              std::to_string(m) + " rank " + std::to_string(rank) + ": ";
    std::string what = mutate(schedule.per_rank[rank]);
    return {where + what, std::move(schedule)};
  }

 private:
  int number(int low, int high) {
    return low + static_cast<int>(engine_() % static_cast<unsigned>(high - low + 1));
  }

  // One of an action, a send, a receive; whatever there is where the row has none of them.
  std::size_t pick(const std::vector<Action>& row) {
    const int wanted = number(0, 2);
    std::vector<std::size_t> fitting;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const ActionKind kind = row[i].kind;
      const bool sends = kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward;
      const bool receives = kind == ActionKind::kRecvForward || kind == ActionKind::kRecvBackward;
      if (wanted == (sends ? 1 : receives ? 2 : 0)) fitting.push_back(i);
    }
    return fitting.empty() ? engine_() % row.size() : fitting[engine_() % fitting.size()];
  }

  std::string mutate(std::vector<Action>& row) {
    const std::size_t at = pick(row);
    const std::string name = to_string(row[at]) + " at " + std::to_string(at);
    const auto position = [&](std::size_t i) {
      return row.begin() + static_cast<std::ptrdiff_t>(i);
    };
    const Action action = row[at];
    const int how = number(0, 3);
    if (how == 0) {
      row.erase(position(at));
      return "delete " + name;
    }
    // Half of them near, where what results is often still right.
    const auto other = number(0, 1) == 0 ? std::min(at + 1 + engine_() % 3, row.size() - 1)
                                         : engine_() % row.size();
    if (how == 1) {
      row.insert(position(other), action);
      return "duplicate " + name + " to " + std::to_string(other);
    }
    if (how == 2) {
      std::swap(row[at], row[other]);
      return "swap " + name + " with " + std::to_string(other);
    }
    row.erase(position(at));
    row.insert(position(std::min(other, row.size())), action);
    return "move " + name + " to " + std::to_string(other);
  }

  std::mt19937 engine_;
};

struct MutationCounts {
  int right = 0, deadlocks = 0, wrong = 0;
};

// check() finds something exactly where the pipeline deadlocks or computes wrong.
inline MutationCounts expect_verdicts(unsigned seed, int count) {
  Mutator mutator(seed);
  MutationCounts counts;
  for (int n = 0; n < count; ++n) {
    const Mutation mutation = mutator.next();
    const Outcome outcome = run_blocking(mutation.schedule);
    const Problems problems = check(mutation.schedule);
    EXPECT_EQ(problems.empty(), outcome == Outcome::kRight) << mutation.text << "\n"
                                                            << to_string(problems) << "\n"
                                                            << to_csv(mutation.schedule);
    if (outcome == Outcome::kRight) ++counts.right;
    if (outcome == Outcome::kDeadlock) ++counts.deadlocks;
    if (outcome == Outcome::kWrong) ++counts.wrong;
  }
  return counts;
}

}  // namespace quatrain
