// SPDX-License-Identifier: Apache-2.0
#include "quatrain/schedule/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "quatrain/schedule/blocking_test_support.h"
#include "quatrain/schedule/grid_test_support.h"

namespace quatrain {
namespace {

std::size_t sends(const Schedule& schedule) {
  std::size_t count = 0;
  for (const auto& row : schedule.per_rank) {
    count += static_cast<std::size_t>(std::ranges::count_if(row, [](const Action& action) {
      return action.kind == ActionKind::kSendForward || action.kind == ActionKind::kSendBackward;
    }));
  }
  return count;
}

TEST(WithMessages, BehindTheProducerAndAtItsTime) {
  EXPECT_EQ(to_csv(with_messages(one_f_one_b(2, 2))),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
}

TEST(WithMessages, FollowTheTimesGiven) {
  const Schedule schedule = gpipe(2, 2);
  Durations slow;
  slow.of_stage = {{}, {.forward = 9, .fused = 10}};
  const Timeline times = simulate(schedule, slow);
  EXPECT_EQ(to_csv(with_messages(schedule, times)),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n");
}

TEST(WithMessages, TheTurnOfAVIsLocal) {
  const std::string text = to_csv(with_messages(zero_bubble_v(2, 3)));
  EXPECT_EQ(text.find("1SEND_F"), std::string::npos);  // stages 1 and 2 are on rank 1
  EXPECT_EQ(text.find("2RECV_F"), std::string::npos);
  EXPECT_NE(text.find("2SEND_F0"), std::string::npos);
}

TEST(WithMessages, BothHalvesOfAPairSend) {
  const Schedule rows = with_messages(dualpipe_v(2, 4));
  EXPECT_EQ(to_string(check(rows)), "");
  EXPECT_EQ(sends(rows), 4U * (2 - 1) * 4);
}

TEST(WithMessages, AreWrittenOnce) {
  EXPECT_THROW(with_messages(with_messages(gpipe(2, 2))), BugError);
  EXPECT_THROW(with_messages(gpipe(2, 2), Timeline{}), BugError);
}

// Messages of a step: 2 (stages - 1) m, less those of neighbours on one rank.
TEST(WithMessages, CountIsTheFormula) {
  for (const auto& [name, chunks, count] : {std::tuple{"1f1b", 1, 48U},
                                            {"interleaved-1f1b", 2, 112U},
                                            {"looped-bfs", 2, 112U},
                                            {"zb-h2", 1, 48U},
                                            {"zb-v", 2, 96U},
                                            {"v-min", 2, 96U},
                                            {"dualpipe-v", 2, 96U},
                                            {"dualpipe", 1, 48U}}) {
    const Schedule schedule =
        make_schedule(name, {.num_ranks = 4, .num_microbatches = 8, .chunks = chunks});
    EXPECT_EQ(sends(with_messages(schedule)), count) << name;
  }
}

TEST(WithTiedReduce, BehindAllWorkOfBothOwners) {
  const Schedule rows = with_tied_reduce(with_optimizer_step(with_messages(gpipe(2, 1))));
  EXPECT_EQ(to_csv(rows),
            "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_TIED,0OPTIMIZER_STEP\n"
            "1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_TIED,1OPTIMIZER_STEP\n");
  EXPECT_EQ(to_string(check(rows)), "");
  const Schedule v = zero_bubble_v(2, 4);
  EXPECT_EQ(with_tied_reduce(v), v);
  EXPECT_EQ(with_tied_reduce(gpipe(1, 2)), gpipe(1, 2));
}

TEST(ForwardSchedule, RunsGroupsThroughEveryStage) {
  EXPECT_EQ(to_csv(forward_schedule({0, 1, 1, 0}, 3)),
            "0F0,0F1,3F0,3F1,0F2,3F2\n1F0,1F1,2F0,2F1,1F2,2F2\n");
  EXPECT_EQ(to_csv(with_messages(forward_schedule({0, 1}, 2))),
            "0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n");
  EXPECT_EQ(to_csv(forward_schedule({0, 1, 0}, 0)), "\n\n");
}

Schedule fully_lowered(const GridPoint& point) {
  return with_tied_reduce(
      with_optimizer_step(with_messages(make_schedule(point.name, point.request))));
}

// Every schedule, written out, runs where nothing is buffered and sends block.
TEST(WithMessages, case_073_BlockingRendezvousPasses) {
  for_part_of_grid(73, 120, [](const GridPoint& point) {
    if (!defined(point)) return;
    const Schedule rows = fully_lowered(point);
    EXPECT_EQ(run_blocking(rows), Outcome::kRight) << to_string(point);
    EXPECT_EQ(to_string(check(rows)), "") << to_string(point);
    EXPECT_EQ(schedule_from_csv(to_csv(rows)), rows) << to_string(point);
    const Schedule forwards =
        with_messages(forward_schedule(rows.rank_of_stage.front(), rows.num_microbatches));
    EXPECT_NE(run_blocking(forwards), Outcome::kDeadlock) << to_string(point);
  });
}

// The obvious lowering, each receive where its value is used, does not.
TEST(WithMessages, case_073_ReceivesAtTheirUseDeadlock) {
  const Schedule naive = schedule_from_csv(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0F2,0SEND_F2,0RECV_B1,0B1,0RECV_B2,0B2\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1RECV_F2,1F2,1B2,1SEND_B2\n");
  EXPECT_EQ(run_blocking(naive), Outcome::kDeadlock);
  EXPECT_THAT(to_string(check(naive)), ::testing::HasSubstr("deadlock"));
}

}  // namespace
}  // namespace quatrain
