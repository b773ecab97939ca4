// SPDX-License-Identifier: Apache-2.0
#include "quatrain/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quatrain/base/check.h"

namespace quatrain {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::ThrowsMessage;

TEST(Check, NamesFileLineConditionAndValues) {
  const int rows = 3;
  EXPECT_NO_THROW(CHECK(rows == 3, "never formatted"));
  EXPECT_THAT([&] { CHECK(rows == 4, "{} rows", rows); },
              ThrowsMessage<BugError>(MatchesRegex(
                  "quatrain/base/error_test.cc:[0-9]+: check failed: rows == 4: 3 rows")));
  EXPECT_THAT([&] { CHECK(rows < 0); }, ThrowsMessage<BugError>(HasSubstr("rows < 0")));
}

TEST(Problems, OneLineEach) {
  const Problems problems = {{"parallel.tp", "tp = 6 does not divide 32 heads", "use 1 2 4 8"},
                             {"", "no data", ""}};
  EXPECT_EQ(to_string(problems),
            "parallel.tp: tp = 6 does not divide 32 heads; use 1 2 4 8\nno data");
  EXPECT_EQ(to_string(Problems{}), "");
}

TEST(Problems, ThrownAllAtOnce) {
  EXPECT_NO_THROW(throw_if_any({}));
  EXPECT_THAT(
      [] {
        throw_if_any({{"a", "x", ""}, {"b", "y", ""}});
      },
      ThrowsMessage<ConfigError>("a: x\nb: y"));
}

}  // namespace
}  // namespace quatrain
