// SPDX-License-Identifier: Apache-2.0
// A part of everything with everything against one rank: the first rows of the array that the
// number in seed.txt makes, which are those that close the most triples.
#include <gtest/gtest.h>

#include "tests/composition/factors.h"

namespace quatrain {
namespace {

constexpr std::size_t kPart = 96;

TEST(Composition, EqualsOneRank) {
  const CoveringArray array(composition_space(), composition_seed());
  ASSERT_GE(array.rows().size(), kPart);
  for (std::size_t i = 0; i < kPart; ++i) {
    const Row& row = array.rows()[i];
    SCOPED_TRACE(describe(row));
    const Difference found = from_one_rank({recipe_of(row), geometry_of(row)});
    EXPECT_LE(found.max_rel, 1e-12) << found.where;
  }
}

}  // namespace
}  // namespace quatrain
