// SPDX-License-Identifier: Apache-2.0
// Products on their own: waves, many at once, gradients that add up.
#include "quatrain/planner/op_time.h"

#include <gtest/gtest.h>

namespace quatrain {
namespace {

Job job_on(const char* name) {
  Job job;
  job.cluster = cluster(name);
  return job;
}

double seconds_a_flop(const Job& job, const Product& p, bool gradient = false) {
  return product_seconds(job, p, Precision::kJob, gradient) / p.flops();
}

// 108 units: 9 x 12 tiles fill one wave, 9 x 13 are begun as a second one, which smaller tiles
// share.
TEST(ProductSeconds, AWaveThatIsNotFullLosesLittle) {
  const Job job = job_on("a100-sxm-80gb");
  const Product full{9 * 128, 12 * 128, 8192}, over{9 * 128, 13 * 128, 8192};
  const double loss = seconds_a_flop(job, over) / seconds_a_flop(job, full);
  EXPECT_GT(loss, 1.05);
  EXPECT_LT(loss, 1.25);
}

// A unit that has no tile has nothing to do, whatever a library chooses.
TEST(ProductSeconds, FewTilesLeaveUnitsIdle) {
  const Job job = job_on("a100-sxm-80gb");
  const Product few{3 * 128, 9 * 128, 512}, many{12 * 128, 9 * 128, 512};
  EXPECT_GT(product_seconds(job, few, Precision::kJob),
            0.9 * product_seconds(job, many, Precision::kJob));
}

// Each of many products reads its own matrix, beside no other work: rates grow with rows.
TEST(ProductSeconds, ManyProductsReadTheirMatrices) {
  const Job job = job_on("b200-sxm");
  const auto rate = [&](double rows) { return 1 / seconds_a_flop(job, {rows, 4096, 7168, 64}); };
  EXPECT_LT(rate(128), 0.5 * rate(4096));
  EXPECT_GT(rate(1024), 0.75 * rate(4096));
  EXPECT_GT(rate(4096), 0.85 / seconds_a_flop(job, {64 * 4096, 4096, 7168, 1}));
}

TEST(ProductSeconds, GradientsOfFewRowsWaitForTheirSums) {
  const Job job = job_on("b200-sxm");
  const Product few{4096, 7168, 128, 64}, many{4096, 7168, 8192, 64};
  EXPECT_GT(seconds_a_flop(job, few, true), 1.5 * seconds_a_flop(job, few));
  EXPECT_LT(seconds_a_flop(job, many, true), 1.2 * seconds_a_flop(job, many));
}

}  // namespace
}  // namespace quatrain
