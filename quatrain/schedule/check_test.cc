// SPDX-License-Identifier: Apache-2.0
// Each rule, broken once, is found and named; pairs and messages are understood.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <utility>

#include "quatrain/base/error.h"
#include "quatrain/schedule/check.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string problems(std::string_view csv) { return to_string(check(schedule_from_csv(csv))); }

TEST(Check, MissingActions) {
  EXPECT_EQ(problems("0F0,0B0,0F1\n1F0,1B0,1F1,1B1\n"), "rank 0: 0B1 is missing");
  EXPECT_EQ(problems("0F0,0I0,0W0\n1F0,1I0\n"), "rank 1: 1W0 is missing");
  EXPECT_EQ(problems("0F0,0I0,0W0\n1F0,1W0\n"), "rank 1: 1I0 is missing");
  EXPECT_EQ(problems("0B0\n1F0,1B0\n"), "rank 0: 0F0 is missing");
}

TEST(Check, RepeatedActions) {
  EXPECT_EQ(problems("0F0,0F0,0B0\n"),
            "rank 0, action 1: 0F0 is repeated; first at rank 0, action 0");
  EXPECT_EQ(problems("0F0,0B0,0I0,0W0\n"),
            "rank 0, action 1: 0B0 and its halves both run; either B, or I and W");
  EXPECT_THAT(problems("0F0,0B0,0OPTIMIZER_STEP,0OPTIMIZER_STEP\n"),
              HasSubstr("0OPTIMIZER_STEP is repeated"));
}

TEST(Check, OrderWithinARank) {
  EXPECT_EQ(problems("0B0,0F0\n"),
            "rank 0, action 0: 0B0 runs before 0F0, which it needs; that is action 1");
  EXPECT_EQ(problems("0F0,0W0,0I0\n"),
            "rank 0, action 1: 0W0 runs before 0I0, which it needs; that is action 2");
  EXPECT_EQ(problems("1F0,0F0,1B0,0B0\n"),
            "rank 0, action 0: 1F0 runs before 0F0, which it needs; that is action 1");
  EXPECT_EQ(problems("0F0,0OPTIMIZER_STEP,0B0\n"),
            "rank 0, action 2: 0B0 runs after its stage's OPTIMIZER_STEP; that is action 1");
}

TEST(Check, WrongRank) {
  Schedule schedule = gpipe(2, 1);
  std::swap(schedule.rank_of_stage[0][0], schedule.rank_of_stage[0][1]);
  EXPECT_THAT(to_string(check(schedule)),
              AllOf(HasSubstr("rank 0, action 0: 0F0 runs on rank 0 but its stage is on rank 1"),
                    HasSubstr("rank 1, action 1: 1B0 runs on rank 1 but its stage is on rank 0")));
}

TEST(Check, DeadlockNamesEveryWait) {
  // Rank 0 wants the backward of 0 before it starts 1; rank 1 wants the forward of 1 first.
  EXPECT_EQ(problems("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n"),
            "schedule: deadlock: rank 0 waits at action 1 (0B0) for 1B0 on rank 1, rank 1 waits at "
            "action 0 (1F1) for 0F1 on rank 0");
}

TEST(Check, AllProblemsAtOnce) {
  EXPECT_THAT(problems("0F0,0F0,0B1,0F1,0B0\n1F0,1B0,1F1\n"),
              AllOf(HasSubstr("0F0 is repeated"), HasSubstr("1B1 is missing"),
                    HasSubstr("0B1 runs before 0F1")));
}

TEST(Check, Pairs) {
  EXPECT_EQ(problems("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n"), "");
  EXPECT_THAT(problems("(0F0;0B0)OVERLAP_F_B\n"),
              HasSubstr("0B0 runs before 0F0, which it needs; that is action 0"));
}

TEST(Check, MessagesWrittenOut) {
  EXPECT_EQ(problems("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"), "");
  EXPECT_THAT(problems("0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
              HasSubstr("rank 1, action 0: 1RECV_F0 has no 0SEND_F0"));
  EXPECT_THAT(problems("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n"),
              HasSubstr("rank 0, action 1: 0SEND_F0 has no 1RECV_F0"));
  EXPECT_THAT(problems("0F0,0RECV_B0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
              HasSubstr("deadlock: rank 0 waits at action 1 (0RECV_B0) for 1SEND_B0 on rank 1"));
  EXPECT_THAT(problems("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n"),
              HasSubstr("1F0 runs before 1RECV_F0"));
  EXPECT_THAT(problems("0F0,0SEND_B0,0B0\n"), HasSubstr("0SEND_B0 has no"));
}

TEST(Check, ReplicasShareNoMicrobatch) {
  EXPECT_THAT(problems("0F0,0F0@1,0B0,0B0@1\n"),
              HasSubstr("micro-batch 0 runs in replicas 0 and 1"));
}

TEST(Check, ShapeFirst) {
  Schedule schedule = gpipe(2, 2);
  schedule.num_microbatches = 3;
  EXPECT_THAT(to_string(check(schedule)), HasSubstr("0F2 is missing"));
  schedule.num_microbatches = 1;
  EXPECT_THAT(to_string(check(schedule)),
              HasSubstr("0F1 is of no micro-batch of the schedule; micro-batches are 0 to 0"));
  schedule.num_microbatches = 1000000000;
  EXPECT_THAT(to_string(check(schedule)), HasSubstr("1000000000 micro-batches but only"));
  schedule = gpipe(2, 2);
  schedule.rank_of_stage[0][1] = 5;
  EXPECT_THAT(to_string(check(schedule)), HasSubstr("stage 1 is placed on rank 5 of 2"));
  schedule.rank_of_stage[0].pop_back();
  EXPECT_THAT(to_string(check(schedule)), HasSubstr("replica 0 places 1 of 2 stages"));
  EXPECT_THAT(to_string(check(Schedule{})), Not(::testing::IsEmpty()));
}

// The rules that a text of rows breaks, once each.
std::set<std::string_view> codes(std::string_view csv) {
  std::set<std::string_view> found;
  for (const Violation& violation : violations(schedule_from_csv(csv))) {
    found.insert(code(violation.rule));
    EXPECT_FALSE(violation.problem.what.empty());
  }
  return found;
}

TEST(Rules, OfComputation) {
  EXPECT_THAT(codes("0F0,0B0\n1F0,1B0\n"), ElementsAre());
  EXPECT_THAT(codes("0F0\n1F0,1B0\n"), ElementsAre("missing"));
  EXPECT_THAT(codes("0F0,0F0,0B0\n"), ElementsAre("repeated"));
  EXPECT_THAT(codes("0F0,0B0,0I0,0W0\n"), ElementsAre("two-backwards"));
  EXPECT_THAT(codes("0B0,0F0\n"), ElementsAre("order"));
  EXPECT_THAT(codes("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n"), ElementsAre("deadlock"));
  Schedule moved = gpipe(2, 1);
  std::swap(moved.per_rank[0], moved.per_rank[1]);
  EXPECT_EQ(violations(moved).front().rule, Rule::kWrongRank);
  Schedule idle = gpipe(2, 1);
  idle.per_rank.emplace_back();
  EXPECT_EQ(violations(idle).front().rule, Rule::kShape);
}

TEST(Rules, OfMessages) {
  EXPECT_THAT(codes("0F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n"),
              ElementsAre("missing-receive", "missing-send"));
  EXPECT_THAT(codes("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n"),
              ElementsAre("missing-receive"));
  EXPECT_THAT(codes("0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"), ElementsAre("missing-send"));
  EXPECT_THAT(codes("0F0,0SEND_F0,1RECV_F0,1F0,1B0,0B0\n"), ElementsAre("local-message"));
  EXPECT_THAT(codes("0RECV_F0,0F0,0B0\n"), ElementsAre("local-message"));
  EXPECT_THAT(codes("0F0,0F1,0SEND_F1,0SEND_F0,0RECV_B0,0B0,0RECV_B1,0B1\n"
                    "1RECV_F0,1RECV_F1,1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n"),
              ElementsAre("deadlock", "lane-order"));
}

TEST(Rules, OfTheStep) {
  EXPECT_THAT(codes("0F0,0REDUCE_GRAD,0B0\n"), ElementsAre("reduce-too-early"));
  EXPECT_THAT(codes("0F0,0F1,0B0,0REDUCE_GRAD1,0B1\n"), ElementsAre("reduce-too-early"));
  EXPECT_THAT(codes("0F0,0F1,0B0,0REDUCE_GRAD0,0B1,0REDUCE_GRAD1\n"), ElementsAre());
  EXPECT_THAT(codes("0F0,0I0,0NORM_PART,0W0\n"), ElementsAre("norm-too-early"));
  EXPECT_THAT(codes("0F0,0B0,0NORM_PART,0REDUCE_GRAD\n"), ElementsAre("norm-too-early"));
  EXPECT_THAT(codes("0F0,0OPTIMIZER_STEP,0B0\n"), ElementsAre("after-step"));
  EXPECT_THAT(codes("0F0,0B0,0OPTIMIZER_STEP\n1F0,1B0\n"), ElementsAre("missing-step"));
  EXPECT_THAT(codes("0F0,0B0,0REDUCE_TIED\n1F0,1B0\n"), ElementsAre("reduce-partner"));
  EXPECT_THAT(codes("0F0,0B0,0REDUCE_TIED\n1F0,1REDUCE_TIED,1B0\n"),
              ElementsAre("deadlock", "reduce-too-early"));
  EXPECT_THAT(codes("0F0,0B0,0REDUCE_TIED\n1F0,1B0,1REDUCE_TIED\n"), ElementsAre());
}

TEST(Rules, OfUnits) {
  EXPECT_THAT(codes("0UNSHARD.0,0F0,0RESHARD.0,0B0\n"), ElementsAre());
  EXPECT_THAT(codes("0F0,0B0,0OPTIMIZER_STEP,0UNSHARD.0\n"), ElementsAre());
  EXPECT_THAT(codes("0UNSHARD.0,0F0,0UNSHARD.0,0B0,0RESHARD.0\n"), ElementsAre("unbalanced-units"));
  EXPECT_THAT(codes("0F0,0RESHARD.0,0B0\n"), ElementsAre("unbalanced-units"));
  EXPECT_THAT(codes("0UNSHARD.0,0F0,0B0\n"), ElementsAre("unbalanced-units"));
}

TEST(Rules, NameTheirActions) {
  const std::vector<Violation> found = violations(schedule_from_csv("0F0,0F0,0B0\n"));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].actions, (std::vector<Place>{{0, 1}, {0, 0}}));
}

TEST(CheckProperty, LossesAndDoublingsAreAlwaysFound) {
  std::mt19937 engine(2);
  for (int n = 0; n < 2000; ++n) {
    const int p = 1 + static_cast<int>(engine() % 5);
    const int m = 1 + static_cast<int>(engine() % 6);
    Schedule schedule = engine() % 2 == 0 ? gpipe(p, m) : one_f_one_b(p, m);
    if (engine() % 2 == 0) schedule = split_backward(schedule);
    auto& row = schedule.per_rank[engine() % schedule.per_rank.size()];
    const auto at = row.begin() + static_cast<std::ptrdiff_t>(engine() % row.size());
    if (engine() % 2 == 0) {
      row.erase(at);
    } else {
      const Action copy = *at;
      row.push_back(copy);
    }
    ASSERT_FALSE(check(schedule).empty()) << to_csv(schedule);
  }
}

}  // namespace
}  // namespace quatrain
