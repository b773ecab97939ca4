// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "quatrain/base/error.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

TEST(MakeSchedule, ByName) {
  EXPECT_EQ(make_schedule("gpipe", {.num_ranks = 2, .num_microbatches = 3}), gpipe(2, 3));
  EXPECT_EQ(make_schedule("1f1b", {.num_ranks = 2, .num_microbatches = 3}), one_f_one_b(2, 3));
  EXPECT_EQ(make_schedule("looped-bfs", {.num_ranks = 2, .num_microbatches = 3, .chunks = 4}),
            looped_bfs(2, 4, 3));
  EXPECT_EQ(make_schedule("interleaved-1f1b",
                          {.num_ranks = 2, .num_microbatches = 6, .chunks = 2, .group = 3}),
            interleaved_1f1b(2, 2, 6, 3));
}

TEST(MakeSchedule, TheTableSaysEverything) {
  std::set<std::string_view> names;
  for (const ScheduleInfo& info : schedule_table()) {
    EXPECT_TRUE(names.insert(info.name).second);
    EXPECT_FALSE(info.bubble.empty() || info.peak.empty() || info.source.empty()) << info.name;
    const Schedule made = make_schedule(
        info.name, {.num_ranks = 4, .num_microbatches = 8, .chunks = info.min_chunks});
    EXPECT_EQ(made.rank_of_stage, place_stages(info.placement, 4, info.min_chunks)) << info.name;
  }
}

TEST(MakeSchedule, UnknownNamesTheNearestAndAll) {
  EXPECT_THAT([] { make_schedule("1fb1", {}); },
              ThrowsMessage<ConfigError>(
                  AllOf(HasSubstr("no schedule is named \"1fb1\"; did you mean \"1f1b\"? "
                                  "(schedules: gpipe, 1f1b, "),
                        HasSubstr("zb-h1"))));
  EXPECT_THAT([] { make_schedule("magic", {}); },
              ThrowsMessage<ConfigError>(Not(HasSubstr("did you mean"))));
}

TEST(MakeSchedule, RefusesWithAllReasons) {
  EXPECT_THAT([] { make_schedule("1f1b", {.num_ranks = 0, .num_microbatches = -1, .chunks = 2}); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("num_ranks = 0"),
                                               HasSubstr("num_microbatches = -1"),
                                               HasSubstr("1f1b has one chunk a rank, not 2"))));
  EXPECT_THAT([] { make_schedule("zb-v", {.num_ranks = 2, .num_microbatches = 4}); },
              ThrowsMessage<ConfigError>("schedule: zb-v has two chunks a rank, not 1; "
                                         "set chunks = 2"));
}

std::string refusal(std::string_view name, const ScheduleRequest& request) {
  try {
    make_schedule(name, request);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(MakeSchedule, RefusalsNameTheRuleAndWhatFits) {
  EXPECT_EQ(refusal("dualpipe-v", {.num_ranks = 4, .num_microbatches = 7, .chunks = 2}),
            "schedule: dualpipe-v: 7 micro-batches for 4 ranks; use 8 (2p) or more");
  EXPECT_EQ(refusal("dualpipe", {.num_ranks = 3, .num_microbatches = 7}),
            "schedule: dualpipe: 3 ranks cannot be halved; use an even number, or dualpipe-v\n"
            "schedule: dualpipe: 7 micro-batches cannot enter from two ends in equal parts; use 8");
  EXPECT_EQ(
      refusal("interleaved-1f1b", {.num_ranks = 4, .num_microbatches = 9, .chunks = 2, .group = 4}),
      "schedule: interleaved-1f1b: groups of 4 of 9 micro-batches on 4 ranks; a group and "
      "what is left for the last one have at least 4 each; group = 0 chooses");
}

}  // namespace
}  // namespace quatrain
