// SPDX-License-Identifier: Apache-2.0
#include "quatrain/base/text.h"

#include <gtest/gtest.h>

#include <limits>

#include "quatrain/base/error.h"

namespace quatrain {
namespace {

using Names = std::vector<std::string>;

TEST(Nearest, TypingSlipsOnly) {
  const Names names = {"gpipe", "1f1b", "learning_rate", "weight_decay", "warmup_steps"};
  EXPECT_EQ(nearest("gpip", names), Names{"gpipe"});
  EXPECT_EQ(nearest("gppie", names), Names{"gpipe"});
  EXPECT_EQ(nearest("1F1B", names), Names{"1f1b"});
  EXPECT_EQ(nearest("1fb1", names), Names{"1f1b"});
  EXPECT_EQ(nearest("learnin_rat", names), Names{"learning_rate"});
  EXPECT_EQ(nearest("zzzzz", names), Names{});
  EXPECT_EQ(nearest("", names), Names{});
}

TEST(Nearest, NearestFirstAndLimited) {
  const Names names = {"abcdef", "abcde", "abcd", "abcdefg"};
  EXPECT_EQ(nearest("abcde", names), (Names{"abcde", "abcdef", "abcd"}));
  EXPECT_EQ(nearest("abcde", names, 1), Names{"abcde"});
}

TEST(Divisors, Ascending) {
  EXPECT_EQ(divisors(32), (std::vector<std::int64_t>{1, 2, 4, 8, 16, 32}));
  EXPECT_EQ(divisors(36), (std::vector<std::int64_t>{1, 2, 3, 4, 6, 9, 12, 18, 36}));
  EXPECT_EQ(divisors(1), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(divisors(1000003), (std::vector<std::int64_t>{1, 1000003}));
  EXPECT_THROW(divisors(0), BugError);
}

TEST(Join, WithSeparator) {
  EXPECT_EQ(join(divisors(6), " "), "1 2 3 6");
  EXPECT_EQ(join(Names{"a", "b"}, ", "), "a, b");
  EXPECT_EQ(join(Names{}, ", "), "");
}

TEST(WithCommas, EveryLength) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(25221), "25,221");
  EXPECT_EQ(with_commas(-123456), "-123,456");
  EXPECT_EQ(with_commas(1234567), "1,234,567");
  EXPECT_EQ(with_commas(std::numeric_limits<std::int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(HumanBytes, BinaryUnits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.00 KiB");
  EXPECT_EQ(human_bytes(1299227607), "1.21 GiB");
  EXPECT_EQ(human_bytes((1 << 20) - 1), "1.00 MiB");
  EXPECT_EQ(human_bytes(-2048), "-2.00 KiB");
  EXPECT_EQ(human_bytes(std::numeric_limits<std::int64_t>::max()), "8.00 EiB");
}

TEST(HumanDuration, HoursMinutesSeconds) {
  EXPECT_EQ(human_duration(39.4), "0:00:39");
  EXPECT_EQ(human_duration(3599.6), "1:00:00");
  EXPECT_EQ(human_duration(100000), "27:46:40");
  EXPECT_EQ(human_duration(-1), "-:--:--");
  EXPECT_EQ(human_duration(std::numeric_limits<double>::quiet_NaN()), "-:--:--");
}

TEST(Glob, StarsAndQuestionMarks) {
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("model.layers.*.weight", "model.layers.0.mlp.weight"));
  EXPECT_TRUE(glob_match("*norm*", "layers.0.norm.weight"));
  EXPECT_TRUE(glob_match("a?c", "abc"));
  EXPECT_TRUE(glob_match("*a*ab", "aaab"));
  EXPECT_FALSE(glob_match("a?c", "ac"));
  EXPECT_FALSE(glob_match("layers.0", "layers.01"));
  EXPECT_FALSE(glob_match("", "a"));
  EXPECT_FALSE(glob_match("*.bias", "layers.weight"));
}

TEST(HexFloat, Exact) {
  EXPECT_EQ(hex_float(1.0), "0x1p+0");
  EXPECT_EQ(hex_float(-0.1), "-0x1.999999999999ap-4");
}

TEST(Table, NumbersToTheRight) {
  Table table({"layer", "params", "share"});
  table.add({"embed", "12,582,912", "31.2 %"});
  table.add({"head", "-", "0.5 %"});
  EXPECT_EQ(table.to_string(),
            "layer      params   share\n"
            "embed  12,582,912  31.2 %\n"
            "head            -   0.5 %\n");
  EXPECT_THROW(table.add({"one"}), BugError);
}

TEST(Table, TextToTheLeftWithoutTrailingBlanks) {
  Table table({"a", "name"});
  table.add({"1", "2 of them, x"});
  table.add({"10", "y"});
  EXPECT_EQ(table.to_string(), " a  name\n 1  2 of them, x\n10  y\n");
}

}  // namespace
}  // namespace quatrain
