// SPDX-License-Identifier: Apache-2.0
#include "bench/planner/scaling.h"

#include <gtest/gtest.h>

namespace quatrain::bench {
namespace {

class WeakScaling : public ::testing::Test {
 protected:
  const std::vector<Scaling> all_ = weak_scaling();
};

TEST_F(WeakScaling, ReachesAllAcceleratorsWithinMemory) {
  ASSERT_EQ(all_.size(), 4U);
  for (const Scaling& scaling : all_) {
    EXPECT_EQ(scaling.rows.front().gpus, scaling.name.starts_with("405B") ? 1024 : 16);
    EXPECT_EQ(scaling.rows.back().gpus, 16384) << scaling.name;
    for (const ScalingRow& row : scaling.rows) {
      EXPECT_EQ(row.geometry.world(), row.gpus) << scaling.name;
      EXPECT_TRUE(row.fits) << scaling.name << " on " << row.gpus;
    }
  }
}

// More accelerators at a fixed batch of each change what data ranks exchange, and nothing else but
// the optimizer's share, which shrinks.
TEST_F(WeakScaling, OnlyDataParallelismGrows) {
  for (const Scaling& scaling : all_) {
    const ScalingRow& first = scaling.rows.front();
    for (std::size_t i = 1; i < scaling.rows.size(); ++i) {
      const ScalingRow &before = scaling.rows[i - 1], &row = scaling.rows[i];
      EXPECT_DOUBLE_EQ(row.parts.compute, first.parts.compute) << scaling.name;
      EXPECT_DOUBLE_EQ(row.parts.exposed_tp, first.parts.exposed_tp) << scaling.name;
      EXPECT_GE(row.parts.exposed_dp, before.parts.exposed_dp) << scaling.name;
      EXPECT_LE(row.parts.optimizer, before.parts.optimizer) << scaling.name;
      const double grown = row.parts.exposed_dp - first.parts.exposed_dp;
      const double shrunk = first.parts.optimizer - row.parts.optimizer;
      EXPECT_NEAR(row.step - first.step, grown - shrunk, 1e-9 * first.step) << scaling.name;
    }
  }
}

TEST_F(WeakScaling, StepsStayNearlyFlat) {
  for (const Scaling& scaling : all_) {
    const double grown = scaling.rows.back().step / scaling.rows.front().step;
    EXPECT_GE(grown, 1) << scaling.name;
    EXPECT_LT(grown, 1.08) << scaling.name;
  }
  // Copies of groups of 64 exchange shards only: flatter than shards over all.
  EXPECT_LT(all_[1].rows.back().step / all_[1].rows.front().step, 1.02);
}

}  // namespace
}  // namespace quatrain::bench
