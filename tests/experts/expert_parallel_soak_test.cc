// SPDX-License-Identifier: Apache-2.0
// The whole grid of expert parallelism.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/experts/parallel_grid.h"

namespace quatrain {
namespace {

TEST(ExpertParallelSoak, EqualsOneRank) {
  double worst = 0.0;
  const std::vector<Case> all = expert_parallel_grid(5);
  for (const Case& c : all) {
    SCOPED_TRACE(c.name());
    const Difference found = from_one_rank(c);
    worst = std::max(worst, found.max_rel);
    EXPECT_LE(found.max_rel, 1e-12) << found.where;
    if (HasFailure()) return;
  }
  fmt::print("{} combinations, worst {:.2e}\n", all.size(), worst);
}

}  // namespace
}  // namespace quatrain
