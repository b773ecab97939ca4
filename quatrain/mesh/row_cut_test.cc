// SPDX-License-Identifier: Apache-2.0
#include "quatrain/mesh/row_cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "quatrain/base/rng.h"

namespace quatrain {
namespace {

using ::testing::ElementsAre;
using Shapes = std::vector<std::vector<std::int64_t>>;

TEST(RowCut, EvenWhereRowsAllowIt) {
  EXPECT_THAT(row_cuts(Shapes{{8, 3}}, 4), ElementsAre(0, 6, 12, 18, 24));
  EXPECT_THAT(row_cuts(Shapes{{4, 4}, {4, 4}}, 2), ElementsAre(0, 16, 32));
  EXPECT_THAT(row_cuts(Shapes{{64}}, 4), ElementsAre(0, 16, 32, 48, 64));
}

TEST(RowCut, NeverInsideARow) {
  EXPECT_THAT(row_cuts(Shapes{{3, 10}}, 2), ElementsAre(0, 10, 30));  // 15: the lower of two
  EXPECT_THAT(row_cuts(Shapes{{7, 10}}, 3), ElementsAre(0, 20, 50, 70));
  EXPECT_THAT(row_cuts(Shapes{{1, 100}, {20}}, 2), ElementsAre(0, 100, 120));
}

// The shapes of case 049: 1, 3, 6 and 7 rows, more ranks than rows.
TEST(RowCut, case_049_PiecesMayBeEmpty) {
  EXPECT_THAT(row_cuts(Shapes{{1, 5}}, 4), ElementsAre(0, 0, 0, 5, 5));
  EXPECT_THAT(row_cuts(Shapes{{6, 2}}, 4), ElementsAre(0, 2, 6, 8, 12));
  EXPECT_THAT(row_cuts(Shapes{}, 3), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(row_cuts(Shapes{{5}}, 2), ElementsAre(0, 0, 5));  // a vector below one lane
}

TEST(RowCut, FrozenParametersHaveNoGradient) {
  const Shapes shapes = {{2, 4}, {3}, {2, 4}};
  const std::vector<std::int64_t> cuts = {0, 4, 11, 15, 19};
  EXPECT_THAT(cuts_of_kept(shapes, {true, false, true}, cuts), ElementsAre(0, 4, 8, 12, 16));
  EXPECT_THAT(cuts_of_kept(shapes, {false, true, false}, cuts), ElementsAre(0, 0, 3, 3, 3));
  EXPECT_THAT(sizes_between(cuts), ElementsAre(4, 7, 4, 4));
}

TEST(RowCut, AllCutsAreAllowedAndRise) {
  const RandomStream stream(3, "row cuts");
  std::uint64_t draw = 0;
  const auto below = [&](std::uint64_t n) {
    return static_cast<std::int64_t>(stream.below(draw++, n));
  };
  for (int round = 0; round < 500; ++round) {
    Shapes shapes;
    std::vector<std::int64_t> allowed{0};
    std::int64_t begin = 0;
    std::int64_t widest = 16;
    for (std::int64_t p = below(6); p >= 0; --p) {
      const std::int64_t rows = 1 + below(40);
      const std::int64_t row = below(3) == 0 ? 0 : 1 + below(9);  // 0: a vector
      shapes.push_back(row == 0 ? std::vector{rows} : std::vector{rows, row});
      const std::int64_t step = row == 0 ? 16 : row;
      const std::int64_t end = begin + rows * std::max<std::int64_t>(row, 1);
      for (std::int64_t at = begin; at < end; at += step) allowed.push_back(at);
      allowed.push_back(end);
      begin = end;
      widest = std::max(widest, step);
    }
    const int pieces = static_cast<int>(1 + below(9));
    const std::vector<std::int64_t> cuts = row_cuts(shapes, pieces);
    ASSERT_EQ(cuts.size(), static_cast<std::size_t>(pieces) + 1);
    EXPECT_EQ(cuts.front(), 0);
    EXPECT_EQ(cuts.back(), begin);
    for (std::size_t i = 0; i < cuts.size(); ++i) {
      EXPECT_THAT(allowed, ::testing::Contains(cuts[i]));
      if (i == 0) continue;
      EXPECT_LE(cuts[i - 1], cuts[i]);
      EXPECT_LE(cuts[i] - cuts[i - 1], begin / pieces + 1 + widest);
    }
  }
}

}  // namespace
}  // namespace quatrain
