// SPDX-License-Identifier: Apache-2.0
#include "quatrain/report/scale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace quatrain {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> texts(const Scale& scale) {
  std::vector<std::string> result;
  for (const Scale::Mark& mark : scale.marks()) result.push_back(mark.text);
  return result;
}

TEST(ScaleTest, BoundsAndMarksAreRound) {
  const Scale scale({}, std::vector{0.13, 0.91});
  EXPECT_DOUBLE_EQ(scale.from(), 0.0);
  EXPECT_DOUBLE_EQ(scale.to(), 1.0);
  EXPECT_THAT(texts(scale), ElementsAre("0", "0.2", "0.4", "0.6", "0.8", "1"));
}

TEST(ScaleTest, FromZeroOnlyWhereAsked) {
  const std::vector values = {950.0, 1000.0};
  EXPECT_GT(Scale({}, values).from(), 900.0);
  EXPECT_DOUBLE_EQ(Scale({}, values, true).from(), 0.0);
}

TEST(ScaleTest, PixelsFollowValues) {
  Scale scale(ChartAxis{.from = 0.0, .to = 10.0}, {});
  scale.set_pixels(200, 0);  // upwards
  EXPECT_DOUBLE_EQ(scale.at(0), 200);
  EXPECT_DOUBLE_EQ(scale.at(2.5), 150);
  Scale log(ChartAxis{.log = true, .from = 1.0, .to = 100.0}, {});
  log.set_pixels(0, 100);
  EXPECT_DOUBLE_EQ(log.at(10), 50);
  EXPECT_THAT(texts(log), ElementsAre("1", "2", "5", "10", "20", "50", "100"));
}

TEST(ScaleTest, ValuesThatNoAxisCanShowAreLeftOut) {
  const std::vector<double> values = {NAN, -3.0, INFINITY, 2.0};
  const Scale log(ChartAxis{.log = true}, values);
  EXPECT_FALSE(log.shows(NAN));
  EXPECT_FALSE(log.shows(-3.0));
  EXPECT_TRUE(log.shows(2.0));
  EXPECT_GT(log.from(), 1.0);
  EXPECT_LT(log.to(), 25.0);
  for (const std::vector<double>& few : {std::vector<double>{}, {0.0}, {5.0, 5.0}, {-2.0}}) {
    const Scale scale({}, few);
    EXPECT_LT(scale.from(), scale.to());
    EXPECT_GE(scale.marks().size(), 2U);
  }
}

TEST(ScaleTest, CompactNumbers) {
  EXPECT_EQ(compact(0), "0");
  EXPECT_EQ(compact(0.0125), "0.0125");
  EXPECT_EQ(compact(3.14159), "3.14");
  EXPECT_EQ(compact(1234.4), "1,234");
  EXPECT_EQ(compact(25221), "25.22k");
  EXPECT_EQ(compact(3.4e6), "3.4M");
  EXPECT_EQ(compact(-2e9), "-2G");
  EXPECT_EQ(compact(NAN), "-");
}

}  // namespace
}  // namespace quatrain
