// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "quatrain/schedule/mutation_test_support.h"

namespace quatrain {
namespace {

TEST(Mutations, AreRejectedWhereTheyMatter) {
  const MutationCounts counts = expect_verdicts(3, 300);
  // Of each kind enough, or the test shows nothing.
  EXPECT_GT(counts.right, 20);
  EXPECT_GT(counts.deadlocks, 50);
  EXPECT_GT(counts.wrong, 50);
}

}  // namespace
}  // namespace quatrain
