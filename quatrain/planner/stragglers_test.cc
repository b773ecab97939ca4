// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/stragglers.h"

#include <gtest/gtest.h>

#include "quatrain/spec/model_io.h"

namespace quatrain {
namespace {

// Means of the largest of n: Harter, Biometrika 48, 1961, table 1.
TEST(Stragglers, TheSlowestIsTheLargestOfNormalDraws) {
  EXPECT_EQ(slowest_of(1), 0);
  EXPECT_NEAR(slowest_of(2), 0.56419, 0.03);
  EXPECT_NEAR(slowest_of(5), 1.16296, 0.02);
  EXPECT_NEAR(slowest_of(10), 1.53875, 0.02);
  EXPECT_NEAR(slowest_of(100), 2.50759, 0.02);
}

Job small_job(int gpus) {
  Job job;
  job.model = catalog_model("qwen3-0.6b").spec;
  job.cluster = cluster("h100-sxm-80gb");
  job.gpus = gpus;
  job.seq = 4096;
  job.global_batch = 16;
  return job;
}

TEST(Stragglers, AStageWaitsForTheSlowestOfItsRanks) {
  Job job = small_job(8);
  Geometry g;
  g.pp = 2;
  g.tp = 2;
  g.dp_shard = 2;
  g.microbatches = 8;
  const Estimate even = Estimator(job).clocked(g).estimate;
  EXPECT_EQ(even.parts.other, 0);
  job.cluster.jitter = 0.05;
  const Estimate uneven = Estimator(job).clocked(g).estimate;
  EXPECT_DOUBLE_EQ(uneven.parts.other, 0.05 * slowest_of(4) * even.parts.compute);
  EXPECT_DOUBLE_EQ(uneven.step, even.step + uneven.parts.other);
}

TEST(Stragglers, OneRankIsFasterWhereItsNeighboursStandStill) {
  Job job = small_job(1);
  Geometry g;
  g.microbatches = 16;
  const Estimate busy = Estimator(job).clocked(g).estimate;
  job.cluster.solo_gain = 0.1;
  Estimator estimator(job);
  const Estimate solo = estimator.clocked(g).estimate;
  EXPECT_DOUBLE_EQ(solo.step, 0.9 * busy.step);
  EXPECT_LE(estimator.computing(g), solo.step);
}

TEST(Stragglers, ABubbleIsShorterWhereOthersAreFasterMeanwhile) {
  Job job = small_job(2);
  Geometry g;
  g.pp = 2;
  g.microbatches = 16;
  const Estimate busy = Estimator(job).clocked(g).estimate;
  job.cluster.solo_gain = 0.1;
  const Estimate solo = Estimator(job).clocked(g).estimate;
  EXPECT_GT(busy.parts.bubble, 0);
  EXPECT_DOUBLE_EQ(solo.parts.bubble, 0.9 * busy.parts.bubble);
  EXPECT_DOUBLE_EQ(solo.parts.compute, busy.parts.compute);
}

}  // namespace
}  // namespace quatrain
