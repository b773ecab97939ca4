// SPDX-License-Identifier: Apache-2.0
#include "quatrain/optim/lr_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "quatrain/base/error.h"

namespace quatrain {
namespace {

LrSchedule schedule(LrScheduleKind kind) {
  LrSchedule s;
  s.kind = kind;
  s.warmup_steps = 10;
  s.total_steps = 110;
  s.min_lr_factor = 0.1;
  return s;
}

TEST(LrSchedule, WarmsUpLinearlyToOne) {
  for (const auto kind : {LrScheduleKind::kConstant, LrScheduleKind::kLinear,
                          LrScheduleKind::kCosine, LrScheduleKind::kInverseSqrt}) {
    const LrSchedule s = schedule(kind);
    EXPECT_DOUBLE_EQ(lr_factor(s, 1), 0.1);
    EXPECT_DOUBLE_EQ(lr_factor(s, 5), 0.5);
    EXPECT_DOUBLE_EQ(lr_factor(s, 10), 1.0);
  }
  EXPECT_DOUBLE_EQ(lr_factor({LrScheduleKind::kConstant, 0, 0, 10, 0.0}, 1), 1.0);
}

TEST(LrSchedule, LinearAndCosineEndAtTheMinimum) {
  const LrSchedule linear = schedule(LrScheduleKind::kLinear);
  EXPECT_DOUBLE_EQ(lr_factor(linear, 60), 0.55);
  EXPECT_DOUBLE_EQ(lr_factor(linear, 110), 0.1);
  EXPECT_DOUBLE_EQ(lr_factor(linear, 200), 0.1);
  const LrSchedule cosine = schedule(LrScheduleKind::kCosine);
  EXPECT_NEAR(lr_factor(cosine, 60), 0.55, 1e-15);
  EXPECT_NEAR(lr_factor(cosine, 35), 0.1 + 0.9 * 0.5 * (1.0 + std::sqrt(0.5)), 1e-15);
  EXPECT_DOUBLE_EQ(lr_factor(cosine, 110), 0.1);
}

TEST(LrSchedule, DecayStepsShortenTheDecay) {
  LrSchedule s = schedule(LrScheduleKind::kLinear);
  s.decay_steps = 20;
  EXPECT_DOUBLE_EQ(lr_factor(s, 20), 0.55);
  EXPECT_DOUBLE_EQ(lr_factor(s, 30), 0.1);
}

TEST(LrSchedule, WsdDecaysAtTheEndOnly) {
  LrSchedule s = schedule(LrScheduleKind::kWsd);
  s.decay_steps = 20;
  s.min_lr_factor = 0.0;
  EXPECT_DOUBLE_EQ(lr_factor(s, 11), 1.0);
  EXPECT_DOUBLE_EQ(lr_factor(s, 90), 1.0);
  EXPECT_DOUBLE_EQ(lr_factor(s, 95), 0.75);
  EXPECT_DOUBLE_EQ(lr_factor(s, 110), 0.0);
  s.decay_steps = 0;
  EXPECT_DOUBLE_EQ(lr_factor(s, 110), 1.0);
}

TEST(LrSchedule, InverseSqrtHalvesAtFourTimesTheWarmUp) {
  const LrSchedule s = schedule(LrScheduleKind::kInverseSqrt);
  EXPECT_DOUBLE_EQ(lr_factor(s, 40), 0.5);
  EXPECT_DOUBLE_EQ(lr_factor(s, 1000000), 0.1);
}

TEST(LrSchedule, NamesItsKinds) {
  EXPECT_EQ(lr_schedule_kind("wsd"), LrScheduleKind::kWsd);
  try {
    (void)lr_schedule_kind("cosin");
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("constant linear cosine wsd inverse_sqrt"));
  }
}

}  // namespace
}  // namespace quatrain
