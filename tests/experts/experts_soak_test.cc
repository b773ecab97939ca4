// SPDX-License-Identifier: Apache-2.0
// The whole grid of models with experts.
#include <gtest/gtest.h>

#include "tests/experts/grid.h"

namespace quatrain {
namespace {

TEST(ExpertsSoak, EqualOneRank) {
  for (const Case& c : expert_grid(5)) {
    SCOPED_TRACE(c.name());
    const Difference worst = from_one_rank(c);
    EXPECT_LE(worst.max_rel, 1e-12) << worst.where;
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace quatrain
