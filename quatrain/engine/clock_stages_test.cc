// SPDX-License-Identifier: Apache-2.0
// Order is exact. Times are held to what no noise of the machine can break: sleeps are never short,
// and seldom twice as long.
#include "quatrain/engine/clock_stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/schedule/messages.h"

namespace quatrain {
namespace {

using namespace std::chrono_literals;

struct Ran {
  Schedule schedule;
  Durations durations;
  Timeline simulated;
  Timeline measured;
};

Ran run_once(const std::string& name, const ScheduleRequest& request, const RankTimes& times,
             std::chrono::nanoseconds unit) {
  Ran result;
  const Schedule schedule = without_pairs(make_schedule(name, request));
  result.durations = even_durations(schedule, times);
  result.schedule = with_messages(schedule, simulate(schedule, result.durations));
  result.simulated = simulate(result.schedule, result.durations);
  result.measured = run_on_clock(result.schedule, result.durations, {.unit = unit});
  return result;
}

using Texts = std::vector<std::string>;

Texts computations(const std::vector<Action>& row) {
  Texts texts;
  for (const Action& action : row) {
    if (action.kind <= ActionKind::kBackward) texts.push_back(to_string(action));
  }
  return texts;
}

Texts ran(const std::vector<ClockEvent>& events) {
  Texts texts;
  for (const ClockEvent& event : events) texts.push_back(to_string(event.action));
  return texts;
}

// Every message leaves behind what it carries, is used its time later, and what uses it begins
// after.
void expect_messages_in_order(const Ran& run) {
  std::map<std::string, const ClockEvent*> events;
  for (const auto& row : run.measured.per_rank) {
    for (const ClockEvent& event : row) events[to_string(event.action)] = &event;
  }
  const auto find = [&](int stage, const Action& message, std::string_view kinds) {
    for (const char kind : kinds) {
      const auto found =
          events.find(std::to_string(stage) + kind + std::to_string(*message.microbatch));
      if (found != events.end()) return found->second;
    }
    return static_cast<const ClockEvent*>(nullptr);
  };
  for (const ClockMessage& message : run.measured.messages) {
    SCOPED_TRACE(to_string(message.action));
    const bool forward = message.action.kind == ActionKind::kSendForward;
    const int stage = message.action.stage;
    const auto* from = find(stage, message.action, forward ? "F" : "BI");
    const auto* to = find(stage + (forward ? 1 : -1), message.action, forward ? "F" : "BI");
    ASSERT_TRUE(from != nullptr && to != nullptr);
    EXPECT_GE(message.begin, from->end);
    const StageDurations& times = run.durations.of_stage[static_cast<std::size_t>(stage)];
    EXPECT_GE(message.end - message.begin, times.send_forward - 1e-9);
    EXPECT_GE(to->begin, message.end);
  }
}

class ClockStages : public ::testing::TestWithParam<std::pair<const char*, int>> {};

TEST_P(ClockStages, RunTheRowsInTheirTime) {
  const auto& [name, chunks] = GetParam();
  const Ran run = run_once(name, {.num_ranks = 4, .num_microbatches = 8, .chunks = chunks},
                           {.message = 0.1}, 10ms);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(ran(run.measured.per_rank[rank]), computations(run.schedule.per_rank[rank]));
  }
  EXPECT_EQ(run.measured.messages.size(), run.simulated.messages.size());
  expect_messages_in_order(run);
  EXPECT_GE(run.measured.span, 8 * 3);
  EXPECT_GE(run.measured.makespan, run.simulated.makespan - 1e-6);
  EXPECT_LE(run.measured.makespan, 2 * run.simulated.makespan);
}

INSTANTIATE_TEST_SUITE_P(, ClockStages,
                         ::testing::Values(std::pair{"1f1b", 1}, std::pair{"interleaved-1f1b", 2},
                                           std::pair{"zb-h1", 1}, std::pair{"zb-v", 2}),
                         [](const auto& param) {
                           std::string text = param.param.first;
                           std::erase(text, '-');
                           return text;
                         });

TEST(RunOnClock, MessagesHoldNoSenderUp) {
  const Ran run = run_once("gpipe", {.num_ranks = 2, .num_microbatches = 4}, {.message = 50}, 2ms);
  const ClockEvent& last_forward = run.measured.per_rank[0][3];
  EXPECT_EQ(to_string(last_forward.action), "0F3");
  EXPECT_LT(last_forward.begin, run.measured.per_rank[1][0].begin);
  EXPECT_GE(run.measured.exposed_communication[1], 45);
}

// ZB-H2 has no bubble where nothing holds ranks together between steps, and one where a sum does.
TEST(RunOnClock, StepsOneBehindTheOther) {
  const Schedule schedule = with_messages(zero_bubble_h2(4, 8));
  const Durations durations = even_durations(schedule, {});
  for (const auto& [end, least] :
       {std::pair{StepEnd::kSum, 27.0}, {StepEnd::kPostValidation, 24.0}}) {
    const ClockRun options{.unit = 4ms, .steps = 3, .end = end};
    const Timeline timeline = run_on_clock(schedule, durations, options);
    EXPECT_EQ(timeline.per_rank[0].size(), 3 * 3 * 8);
    EXPECT_GE(step_period(timeline, 3), least - 1e-6);
    EXPECT_LE(step_period(timeline, 3), 2 * least);
  }
}

TEST(RunOnClock, RowsThatDeadlockSaySoAtOnce) {
  const Schedule schedule = schedule_from_csv(
      "0F0,0RECV_B0,0B0,0SEND_F0\n"
      "1RECV_F0,1F0,1B0,1SEND_B0\n");
  EXPECT_THROW(run_on_clock(schedule, even_durations(schedule, {}), {.unit = 1ms}), CommError);
}

}  // namespace
}  // namespace quatrain
