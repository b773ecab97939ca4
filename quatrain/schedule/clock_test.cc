// SPDX-License-Identifier: Apache-2.0
#include "quatrain/schedule/clock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "quatrain/base/error.h"
#include "quatrain/schedule/messages.h"

namespace quatrain {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// F and the halves take 1 for a whole rank, messages nothing.
Timeline at_unit_times(const Schedule& schedule) {
  return simulate(schedule, even_durations(schedule, {}));
}

TEST(Clock, TwoRanksByHand) {
  const Schedule schedule = one_f_one_b(2, 2);
  const Timeline timeline = simulate(schedule, even_durations(schedule, {2, 1, 3, 0.5}));
  // rank 0: 0F0 0F1 0B0 0B1; rank 1: 1F0 1B0 1F1 1B1.
  std::vector<std::vector<double>> begins(2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (const ClockEvent& event : timeline.per_rank[rank]) begins[rank].push_back(event.begin);
  }
  EXPECT_THAT(begins[0], ElementsAre(0, 2, 9, 15));
  EXPECT_THAT(begins[1], ElementsAre(2.5, 4.5, 8.5, 10.5));
  EXPECT_DOUBLE_EQ(timeline.makespan, 19);
  EXPECT_DOUBLE_EQ(timeline.span, 19);
  EXPECT_DOUBLE_EQ(timeline.bubble, 7);
  EXPECT_DOUBLE_EQ(timeline.bubble_rate, 7.0 / 19.0);
  EXPECT_EQ(timeline.messages.size(), 4);
  // Rank 0 waits 0.5 for each of 1B0's and 1B1's messages, rank 1 for 0F0's.
  EXPECT_THAT(timeline.exposed_communication, ElementsAre(1.0, 0.5));
}

// The step's period is the rank's own span, not the makespan: zb-h2 is a parallelogram (section 1).
TEST(Clock, SpanIsOfOneRank) {
  const Timeline timeline = at_unit_times(schedule_from_csv("0F0,0B0\n1F0,1B0\n"));
  EXPECT_DOUBLE_EQ(timeline.makespan, 6);
  EXPECT_DOUBLE_EQ(timeline.span, 6);
  const Timeline skewed = at_unit_times(schedule_from_csv("0F0,0F1\n1F0,1F1\n2F0,2F1\n"));
  EXPECT_DOUBLE_EQ(skewed.makespan, 4);
  EXPECT_DOUBLE_EQ(skewed.span, 2);
  EXPECT_DOUBLE_EQ(skewed.bubble, 0);
}

TEST(Clock, StagesDiffer) {
  const Schedule schedule = gpipe(2, 2);
  Durations durations = even_durations(schedule, {});
  durations.of_stage[1].forward = 3;
  durations.of_stage[0].send_forward = 1;
  durations.of_stage[1].fused = 5;
  durations.of_stage[1].send_backward = 2;
  // 1F0 2-5, 1F1 5-8, 1B0 8-13, 1B1 13-18, 0B0 15-17, 0B1 20-22.
  EXPECT_DOUBLE_EQ(simulate(schedule, durations).makespan, 22);
}

TEST(Clock, LanesCarryOneMessageAtATime) {
  const Schedule schedule = schedule_from_csv("0F0,0F1,0F2\n1F0,1F1,1F2\n");
  Durations durations = even_durations(schedule, {1, 1, 1, 3});
  EXPECT_DOUBLE_EQ(simulate(schedule, durations).makespan, 7);  // 3 + 3 + 1
  durations.wires = Wires::kLanes;
  EXPECT_DOUBLE_EQ(simulate(schedule, durations).makespan, 11);  // 1 + 3 * 3 + 1
}

TEST(Clock, LinksAreSharedByBothPasses) {
  // Stage 0 and 2 on rank 0: it sends 0F1 to rank 1 while 2B0's message is on the way there.
  const Schedule schedule = schedule_from_csv("0F0,2F0,2B0,0F1\n1F0,1F1,1B0\n");
  Durations durations;
  durations.of_stage.assign(3, {1, 1, 1, 2, 4, 4, 0});
  durations.of_stage[0].send_forward = 1;
  const auto end_of_1F1 = [&](Wires wires) {
    durations.wires = wires;
    return simulate(schedule, durations).per_rank[1][1].end;
  };
  // 0F0 0-1, 1F0 2-3, 2F0 7-8, 2B0 8-10, its message to 14; 0F1 10-11.
  EXPECT_DOUBLE_EQ(end_of_1F1(Wires::kUnlimited), 13);
  EXPECT_DOUBLE_EQ(end_of_1F1(Wires::kLanes), 13);
  EXPECT_DOUBLE_EQ(end_of_1F1(Wires::kLinks), 16);
}

TEST(Clock, WrittenMessagesLeaveAtTheirSend) {
  const Schedule schedule =
      schedule_from_csv("0F0,0F1,0SEND_F0,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n");
  Durations durations = even_durations(schedule, {1, 1, 1, 2});
  const Timeline timeline = simulate(schedule, durations);
  EXPECT_DOUBLE_EQ(timeline.makespan, 6);  // both sent at 2, 1F0 4-5, 1F1 5-6
  EXPECT_DOUBLE_EQ(timeline.span, 2);      // a receive posted early is no work
  durations.rendezvous = true;
  EXPECT_DOUBLE_EQ(simulate(schedule, durations).makespan, 8);  // 1RECV_F1 at 5, 1F1 7-8
}

TEST(Clock, LayersTakeTheirPart) {
  const Schedule schedule = schedule_from_csv("0F0.0,0F0.1,0I0.1,0W0.1,0I0.0,0W0.0\n");
  const Timeline timeline = simulate(schedule, even_durations(schedule, {2, 4, 6, 0}));
  std::vector<double> ends;
  for (const ClockEvent& event : timeline.per_rank[0]) ends.push_back(event.end);
  EXPECT_THAT(ends, ElementsAre(1, 2, 4, 7, 9, 12));
}

TEST(Clock, MeasuredDurationsOverride) {
  const Schedule schedule = gpipe(2, 1);
  Durations durations = even_durations(schedule, {});
  durations.measured = [](const Action& action) {
    return action.kind == ActionKind::kSendForward ? 10.0 : 1.0;
  };
  EXPECT_DOUBLE_EQ(simulate(schedule, durations).makespan, 15);  // 1 + 10 + 1 + 1 + 1 + 1
}

TEST(Clock, DeadlockNamesTheActions) {
  const Schedule crossed = schedule_from_csv("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n");
  EXPECT_THAT([&] { at_unit_times(crossed); },
              ThrowsMessage<ConfigError>("deadlock: rank 0 waits at action 1 (0B0) for 1B0 on rank "
                                         "1, rank 1 waits at action 1 (1F1) for 0F1 on rank 0"));
  const Schedule unreceived = schedule_from_csv("0F0,0SEND_F0\n1F0\n");
  EXPECT_THAT([&] { at_unit_times(unreceived); },
              ThrowsMessage<ConfigError>(HasSubstr("for the message of 0F0 on rank 0")));
  const Schedule backwards = schedule_from_csv("0B0,0F0\n");
  EXPECT_THAT([&] { at_unit_times(backwards); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("(0B0)"), HasSubstr("for 0F0"))));
}

TEST(Clock, OutOfRangeIsRefused) {
  Schedule schedule = gpipe(2, 2);
  schedule.per_rank[1][0].microbatch = 2;
  EXPECT_THAT([&] { at_unit_times(schedule); },
              ThrowsMessage<ConfigError>(HasSubstr("1F2 is outside the schedule")));
}

// By begin and by end, ties by sequence, no action stands before what it needs.
TEST(Clock, SequenceIsATotalOrder) {
  for (const double message : {0.0, 0.3}) {
    const Schedule schedule = split_backward(one_f_one_b(4, 6));
    const Timeline timeline = simulate(schedule, even_durations(schedule, {1, 1, 0, message}));
    for (const auto key : {&ClockEvent::begin, &ClockEvent::end}) {
      std::vector<ClockEvent> all;
      for (const auto& row : timeline.per_rank) all.insert(all.end(), row.begin(), row.end());
      std::sort(all.begin(), all.end(), [&](const ClockEvent& a, const ClockEvent& b) {
        return std::pair(a.*key, a.sequence) < std::pair(b.*key, b.sequence);
      });
      std::map<std::string, std::size_t> at;
      for (std::size_t i = 0; i < all.size(); ++i) at[to_string(all[i].action)] = i;
      for (int m = 0; m < 6; ++m) {
        for (int s = 0; s + 1 < 4; ++s) {
          EXPECT_LT(at[fmt::format("{}F{}", s, m)], at[fmt::format("{}F{}", s + 1, m)]);
          EXPECT_LT(at[fmt::format("{}I{}", s + 1, m)], at[fmt::format("{}I{}", s, m)]);
        }
      }
    }
  }
}

TEST(Clock, PairsAndTheirFactor) {
  const Schedule schedule = schedule_from_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n");
  Durations durations = even_durations(schedule, {});
  EXPECT_DOUBLE_EQ(simulate(schedule, durations).makespan, 6);
  durations.pair_factor = 0.5;
  EXPECT_DOUBLE_EQ(simulate(schedule, durations).makespan, 4.5);
  EXPECT_THAT(peak_stash(schedule), ElementsAre(2));
}

// Written in the order of time and with a lane for each peer and pass, messages cost what they cost
// without contention, at 5 % of a chunk's forward.
TEST(Clock, LanesInOrderOfTimeAreAsGoodAsNone) {
  const std::map<std::string_view, double> makespans = {
      {"1f1b", 33.8},       {"interleaved-1f1b", 57.7}, {"looped-bfs", 57.3},
      {"zb-v", 51.65},      {"v-half", 54.1},           {"v-min", 61.0},
      {"dualpipe-v", 54.8}, {"dualpipe", 26.45}};
  for (const auto& [name, makespan] : makespans) {
    const bool one = name == "1f1b" || name == "dualpipe";
    const Schedule schedule =
        make_schedule(name, {.num_ranks = 4, .num_microbatches = 8, .chunks = one ? 1 : 2});
    const double share = one ? 1 : 2;
    Durations durations = even_durations(schedule, {share, share, share, 0.05});
    const Timeline ideal = simulate(schedule, durations);
    EXPECT_NEAR(ideal.makespan, makespan, 1e-9) << name;
    durations.wires = Wires::kLanes;
    const Schedule lowered = with_messages(schedule, ideal);
    EXPECT_NEAR(simulate(lowered, durations).makespan, makespan, 1e-9) << name;
    durations.rendezvous = true;  // a busy receiver then keeps messages waiting
    EXPECT_LE(simulate(lowered, durations).makespan, 1.03 * makespan) << name;
  }
}

TEST(PeakStash, FollowsTheDeltas) {
  EXPECT_THAT(peak_stash(gpipe(4, 8)), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(peak_stash(one_f_one_b(4, 8)), ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(peak_stash(zero_bubble_h1(4, 8)), ElementsAre(4, 4, 4, 4));
  EXPECT_THAT(peak_stash(zero_bubble_h2(4, 8)), ElementsAre(7, 7, 7, 7));
  const std::vector<StashDeltas> half(4, StashDeltas{2, -1, -1});
  EXPECT_THAT(peak_stash(zero_bubble_h1(4, 8), half), ElementsAre(8, 7, 6, 5));
}

}  // namespace
}  // namespace quatrain
