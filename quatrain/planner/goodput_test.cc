// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/goodput.h"

#include <gtest/gtest.h>

namespace quatrain {
namespace {

TEST(Goodput, TheBestIntervalIsYoungs) {
  const Failures f{.between = 10'000, .save = 50, .restart = 100};
  const Goodput best = best_goodput(f);
  EXPECT_DOUBLE_EQ(best.interval, 1000);
  EXPECT_DOUBLE_EQ(best.share, 1 - 0.05 - 0.06);
  // No other interval loses less.
  for (const double interval : {500.0, 900.0, 1100.0, 2000.0}) {
    EXPECT_LT(1 - f.save / interval - (interval / 2 + f.restart) / f.between, best.share);
  }
  EXPECT_DOUBLE_EQ(best_goodput({}).share, 1);
  EXPECT_DOUBLE_EQ(best_goodput({.between = 1, .save = 0, .restart = 100}).share, 0);
}

// Grattafiori et al., arXiv:2407.21783, table 5: 419 unexpected interruptions in 54 days on 16,384.
TEST(Goodput, Llama3FailsEveryThreeHours) {
  Job job;
  job.cluster = cluster("h100-sxm-80gb");
  job.gpus = 16384;
  const double between = seconds_between_failures(job);
  EXPECT_NEAR(between, 54.0 * 86400 / 419, 0.02 * between);
  EXPECT_GT(best_goodput({.between = between, .save = 10, .restart = 600}).share, 0.9);
}

}  // namespace
}  // namespace quatrain
