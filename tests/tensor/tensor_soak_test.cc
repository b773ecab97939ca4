// SPDX-License-Identifier: Apache-2.0
// The whole grid of tensor parallelism against one rank.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/tensor/grid.h"

namespace quatrain {
namespace {

TEST(TensorSoak, EveryGeometryEqualsOneRank) {
  double worst = 0.0;
  const std::vector<Case> all = full_grid();
  for (const Case& c : all) {
    const Difference d = difference(run_on_threads(c.recipe, c.geometry), one_rank(c.recipe));
    EXPECT_LE(d.max_rel, 1e-12) << c.name() << ": " << d.where;
    worst = std::max(worst, d.max_rel);
  }
  RecordProperty("geometries", static_cast<int>(all.size()));
  RecordProperty("worst", fmt::format("{:.2e}", worst));
}

}  // namespace
}  // namespace quatrain
