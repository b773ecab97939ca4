// SPDX-License-Identifier: Apache-2.0
// A run's events beside the clock: two ranks, one micro-batch, made up by hand.
#include "quatrain/engine/run_timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace quatrain {
namespace {

TraceEvent event(const char* action, TraceLane lane, double begin_us, double end_us) {
  return {parse_action(action), lane, begin_us, end_us};
}

// Rank 1 waits for the forward: 10 us until it is sent, 3 until it has reached its RECV, 2 on its
// way; rank 0 waits 40 for the backward. The optimizer's step of rank 0 holds a wait of 5.
const std::array<std::vector<TraceEvent>, 2> kEvents = {{
    {event("0F0", TraceLane::kCompute, 100, 110), event("0SEND_F0", TraceLane::kSend, 110, 116),
     event("0RECV_B0", TraceLane::kWait, 116, 156),
     event("0RECV_B0", TraceLane::kReceive, 112, 156), event("0B0", TraceLane::kCompute, 156, 176),
     event("0REDUCE_TIED", TraceLane::kWait, 178, 183),
     event("0OPTIMIZER_STEP", TraceLane::kCompute, 177, 187)},
    {event("1RECV_F0", TraceLane::kWait, 100, 115),
     event("1RECV_F0", TraceLane::kReceive, 113, 115), event("1F0", TraceLane::kCompute, 115, 135),
     event("1B0", TraceLane::kCompute, 135, 155), event("1SEND_B0", TraceLane::kSend, 155, 156),
     event("1OPTIMIZER_STEP", TraceLane::kCompute, 157, 160)},
}};

RunTimeline run() {
  const Schedule rows = schedule_from_csv(
      "0F0,0SEND_F0,0RECV_B0,0B0,0OPTIMIZER_STEP\n1RECV_F0,1F0,1B0,1SEND_B0,1OPTIMIZER_STEP\n");
  return compare(rows, kEvents);
}

TEST(RunTimeline, SaysWhereTheTimeWent) {
  const RunTimeline timeline = run();
  EXPECT_EQ(timeline.measured_us, 87.0);
  const RankTime& first = timeline.ranks[0];
  EXPECT_EQ(first.compute, 35.0);
  EXPECT_EQ(first.collectives, 5.0);
  EXPECT_EQ(first.not_sent + first.late_receive + first.lane, 40.0);
  EXPECT_EQ(first.not_sent, 39.0);
  const RankTime& second = timeline.ranks[1];
  EXPECT_EQ(second.not_sent, 10.0);
  EXPECT_EQ(second.late_receive, 3.0);
  EXPECT_EQ(second.lane, 2.0);
  EXPECT_EQ(second.compute, 43.0);
  EXPECT_EQ(second.idle, 27.0);
  for (const RankTime& rank : timeline.ranks) {
    EXPECT_EQ(rank.compute + rank.not_sent + rank.late_receive + rank.lane + rank.collectives +
                  rank.idle + rank.other,
              timeline.measured_us);
  }
}

// F 10, on its way 2, F 20, B 20, on its way 1, B 20, step 10.
TEST(RunTimeline, ClocksTheRowsWithTheirOwnDurations) {
  const RunTimeline timeline = run();
  EXPECT_EQ(timeline.simulated_us, 83.0);
  EXPECT_EQ(timeline.begin_us, 100.0);
  EXPECT_THAT(to_table(timeline), ::testing::HasSubstr("late receive"));
}

TEST(RunTimeline, EventsSurviveTheChromeTrace) {
  const std::vector<TraceEvent> back = from_chrome_rows(to_chrome_rows(kEvents[0], 0));
  ASSERT_EQ(back.size(), kEvents[0].size());
  for (std::size_t i = 0; i < back.size(); ++i) {
    EXPECT_EQ(to_string(back[i].action), to_string(kEvents[0][i].action));
    EXPECT_EQ(back[i].lane, kEvents[0][i].lane);
    EXPECT_EQ(back[i].end_us, kEvents[0][i].end_us);
  }
}

}  // namespace
}  // namespace quatrain
