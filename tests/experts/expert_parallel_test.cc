// SPDX-License-Identifier: Apache-2.0
// Experts shared by ranks against one rank in float64: what experts_test compares, for ep and for
// experts that are cut otherwise than dense matrices are.
#include <gtest/gtest.h>

#include "tests/experts/parallel_grid.h"

namespace quatrain {
namespace {

constexpr double kTight = 1e-12;

void expect_one_rank(const Case& c) {
  SCOPED_TRACE(c.name());
  const Difference worst = from_one_rank(c);
  EXPECT_LE(worst.max_rel, kTight) << worst.where;
}

TEST(ExpertParallel, EqualsOneRank) {
  for (const Case& c : sample(expert_parallel_grid(3), 60)) expect_one_rank(c);
}

// Two ranks with all rows; data ranks with one; tp with slices; shares over data ranks.
TEST(ExpertParallel, EachFoldingAlone) {
  for (const ModelSpec& spec : many_experts()) {
    const Recipe recipe = expert_recipe(spec, 3);
    expect_one_rank({recipe, {.shards = 2, .ep = 2, .etp = 1}});
    expect_one_rank({recipe, {.shards = 2, .ep = 1, .etp = 2}});
    expect_one_rank({recipe, {.tensor = 2, .ep = 1, .etp = 1}});
    expect_one_rank({recipe, {.tensor = 2, .ep = 2, .etp = 1}});
    expect_one_rank({recipe, {.tensor = 4, .ep = 2, .etp = 1}});
    expect_one_rank({recipe, {.tensor = 4, .ep = 2, .etp = 2}});
    expect_one_rank({recipe, {.shards = 2, .tensor = 2, .ep = 1, .etp = 4}});
    expect_one_rank({recipe, {.shards = 4, .tensor = 2, .ep = 2, .etp = 4}});
    expect_one_rank({recipe, {.shards = 2, .tensor = 2, .ep = 2, .etp = 2}});
  }
}

}  // namespace
}  // namespace quatrain
