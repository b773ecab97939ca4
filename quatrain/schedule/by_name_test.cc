// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quatrain/base/error.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

TEST(MakeSchedule, ByName) {
  EXPECT_THAT(schedule_names(), ElementsAre("gpipe", "1f1b"));
  EXPECT_EQ(make_schedule("gpipe", {.num_ranks = 2, .num_microbatches = 3}), gpipe(2, 3));
  EXPECT_EQ(make_schedule("1f1b", {.num_ranks = 2, .num_microbatches = 3}), one_f_one_b(2, 3));
}

TEST(MakeSchedule, UnknownNamesTheNearestAndAll) {
  EXPECT_THAT([] { make_schedule("1fb1", {}); },
              ThrowsMessage<ConfigError>("no schedule is named \"1fb1\"; did you mean \"1f1b\"? "
                                         "(schedules: gpipe, 1f1b)"));
  EXPECT_THAT([] { make_schedule("magic", {}); },
              ThrowsMessage<ConfigError>(Not(HasSubstr("did you mean"))));
}

TEST(MakeSchedule, RefusesWithAllReasons) {
  EXPECT_THAT([] { make_schedule("1f1b", {.num_ranks = 0, .num_microbatches = -1, .chunks = 2}); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("num_ranks = 0"),
                                               HasSubstr("num_microbatches = -1"),
                                               HasSubstr("1f1b has one chunk a rank, not 2"))));
}

}  // namespace
}  // namespace quatrain
