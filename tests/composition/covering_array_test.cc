// SPDX-License-Identifier: Apache-2.0
// Every triple that some legal row holds is in the array, no row is illegal: by listing all rows.
#include "tests/composition/covering_array.h"

#include <gtest/gtest.h>

namespace quatrain {
namespace {

template <typename Visit>
void for_each_row(const std::vector<int>& sizes, const Visit& visit) {
  Row row(sizes.size(), 0);
  for (;;) {
    visit(row);
    std::size_t f = 0;
    while (f < row.size() && ++row[f] == sizes[f]) row[f++] = 0;
    if (f == row.size()) return;
  }
}

// Triples that the legal rows of the whole product hold.
TripleSet by_brute_force(const RowSpace& space) {
  TripleSet all(space.sizes);
  for_each_row(space.sizes, [&](const Row& row) {
    if (!legal(space, row)) return;
    for_each_factor_triple(row.size(), [&](const TripleSet::Triple& t) { all.set(row, t, true); });
  });
  return all;
}

void expect_covered(const RowSpace& space, std::uint32_t seed) {
  const CoveringArray array(space, seed);
  TripleSet want = by_brute_force(space);
  EXPECT_EQ(array.triples(), want.count());
  for (const Row& row : array.rows()) {
    EXPECT_TRUE(legal(space, row));
    for_each_factor_triple(row.size(),
                           [&](const TripleSet::Triple& t) { want.set(row, t, false); });
  }
  EXPECT_EQ(want.count(), 0u);
}

TEST(CoveringArray, FreeFactors) {
  for (const std::uint32_t seed : {1u, 2u, 3u}) expect_covered({{2, 3, 4, 2, 3, 2}, {}}, seed);
}

TEST(CoveringArray, RulesOfTwoAndThreeFactors) {
  RowSpace space{{2, 3, 4, 2, 3, 2, 2}, {}};
  space.rules.push_back({{0, 1}, [](const Row& r) { return r[0] == 1 && r[1] == 2; }});
  space.rules.push_back({{1, 2, 4}, [](const Row& r) { return r[1] + r[2] + r[4] > 5; }});
  space.rules.push_back({{3, 5}, [](const Row& r) { return r[3] != r[5]; }});
  for (const std::uint32_t seed : {1u, 2u, 3u}) expect_covered(space, seed);
}

// No rule of its own refuses factor 0 at 1 with factor 2 at 1; two rules over factor 1 do.
TEST(CoveringArray, TriplesThatOnlyRulesTogetherRefuse) {
  RowSpace space{{2, 2, 2, 2, 2}, {}};
  space.rules.push_back({{0, 1}, [](const Row& r) { return r[0] == 1 && r[1] == 1; }});
  space.rules.push_back({{1, 2}, [](const Row& r) { return r[1] == 0 && r[2] == 1; }});
  const Row row{1, kOpen, 1, kOpen, kOpen};
  EXPECT_TRUE(legal(space, row));
  EXPECT_FALSE(Completion(space).exists(row));
  expect_covered(space, 1);
}

TEST(CoveringArray, OneSeedOneArray) {
  const RowSpace space{{2, 3, 4, 2, 3}, {}};
  EXPECT_EQ(CoveringArray(space, 7).rows(), CoveringArray(space, 7).rows());
  EXPECT_NE(CoveringArray(space, 7).rows(), CoveringArray(space, 8).rows());
}

}  // namespace
}  // namespace quatrain
