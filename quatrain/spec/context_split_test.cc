// SPDX-License-Identifier: Apache-2.0
#include "quatrain/spec/context_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace quatrain {
namespace {

std::vector<std::int64_t> positions(const std::vector<Range>& ranges) {
  std::vector<std::int64_t> all;
  for (const Range& range : ranges) {
    for (std::int64_t i = range.begin; i < range.end; ++i) all.push_back(i);
  }
  return all;
}

TEST(ContextSplit, RanksHoldEveryTokenOnce) {
  for (const std::int64_t seq : {8, 13, 37, 64}) {
    for (const int degree : {1, 2, 3, 4, 8}) {
      for (const int heads : {1, 2, 4}) {
        if (degree % heads != 0) continue;
        for (const bool zigzag : {false, true}) {
          ContextSplit split{.degree = degree, .heads = heads, .zigzag = zigzag};
          std::vector<std::int64_t> all;
          for (int rank = 0; rank < degree; ++rank) {
            split.rank = rank;
            const std::vector<std::int64_t> own = positions(split.own(seq));
            EXPECT_TRUE(std::is_sorted(own.begin(), own.end()));
            EXPECT_EQ(split.tokens(seq), static_cast<std::int64_t>(own.size()));
            all.insert(all.end(), own.begin(), own.end());
          }
          std::sort(all.begin(), all.end());
          std::vector<std::int64_t> expected(static_cast<std::size_t>(seq));
          std::iota(expected.begin(), expected.end(), 0);
          EXPECT_EQ(all, expected) << seq << " " << degree << " " << heads << " " << zigzag;
        }
      }
    }
  }
}

TEST(ContextSplit, case_008_ZigzagHoldsAnEarlyAndALateChunk) {
  const ContextSplit first{.degree = 2};
  EXPECT_EQ(positions(first.own(8)), (std::vector<std::int64_t>{0, 1, 6, 7}));
  const ContextSplit last{.degree = 2, .rank = 1};
  EXPECT_EQ(last.own(8), (std::vector<Range>{{2, 6}}));
}

std::int64_t pairs_of(const std::vector<Range>& queries, std::int64_t seq, std::int64_t window) {
  std::int64_t pairs = 0;
  for (const Range& range : queries) pairs += causal_pairs(range, {0, seq}, window);
  return pairs;
}

TEST(ContextSplit, ZigzagGivesEveryRankAsMuchAttention) {
  for (const int degree : {2, 3, 4, 8}) {
    const std::int64_t seq = std::int64_t{2} * degree * 16;
    std::int64_t most = 0, all = 0;
    for (int rank = 0; rank < degree; ++rank) {
      const ContextSplit split{.degree = degree, .rank = rank};
      most = std::max(most, pairs_of(split.own(seq), seq, 0));
      all += pairs_of(split.own(seq), seq, 0);
    }
    EXPECT_EQ(all, seq * (seq + 1) / 2);
    EXPECT_EQ(most * degree, all);
  }
}

TEST(ContextSplit, PairsAreThoseOfTheMask) {
  for (const std::int64_t window : {0, 1, 3, 9}) {
    for (const Range queries : {Range{0, 7}, Range{5, 12}, Range{11, 12}}) {
      for (const Range keys : {Range{0, 7}, Range{3, 6}, Range{8, 12}}) {
        std::int64_t expected = 0;
        for (std::int64_t i = queries.begin; i < queries.end; ++i) {
          for (std::int64_t j = keys.begin; j < keys.end; ++j) {
            expected += j <= i && (window == 0 || i - j < window) ? 1 : 0;
          }
        }
        EXPECT_EQ(causal_pairs(queries, keys, window), expected);
      }
    }
  }
}

TEST(ContextSplit, NamesTheDegreesThatFit) {
  ModelSpec model;
  model.heads = 8;
  model.kv_heads = 2;
  const ContextSplit split{.degree = 3, .heads = 3};
  const Problems problems = check_context(model, 1, split, 64);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].where, "parallel.cp_style");
  EXPECT_NE(problems[0].hint.find("1 2 4 8"), std::string::npos);
  EXPECT_TRUE(check_context(model, 1, {.degree = 4, .heads = 4}, 64).empty());
  EXPECT_EQ(check_context(model, 1, {.degree = 8}, 5).size(), 1U);
}

}  // namespace
}  // namespace quatrain
