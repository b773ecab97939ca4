// SPDX-License-Identifier: Apache-2.0
// Rotary embedding against complex rotation, and its tables against numbers worked out by hand.
#include "quatrain/kernels/rope_table.h"

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "quatrain/base/error.h"
#include "quatrain/kernels/pointwise.h"
#include "quatrain/kernels/testing.h"

namespace quatrain::kernels {
namespace {

using testing::random;
using testing::relative;

constexpr testing::Bounds kBounds{1e-14, 3e-7, 6e-3};

at::Tensor rotated(const at::Tensor& x_NHd, const RopeTable& table, const at::Tensor& positions) {
  const std::int64_t half = x_NHd.size(2) / 2;
  const at::Tensor c = table.cos_Pd.index_select(0, positions).unsqueeze(1).to(at::kDouble);
  const at::Tensor s = table.sin_Pd.index_select(0, positions).unsqueeze(1).to(at::kDouble);
  const at::Tensor x = x_NHd.to(at::kDouble);
  const at::Tensor a = x.narrow(2, 0, half), b = x.narrow(2, half, half);
  return at::cat({a.mul(c).sub(b.mul(s)), b.mul(c).add(a.mul(s))}, 2);
}

TEST(Rope, RotatesViewsAndBack) {
  for (const at::ScalarType dtype : testing::kDtypes)
    for (const std::int64_t d : {2, 6, 32, 50, 128}) {
      const RopeTable table = rope_table({.head_dim = d}, 40, dtype);
      const at::Tensor positions = at::tensor({39, 0, 7, 7, 1}, at::kLong);
      const at::Tensor fused = random({5, 6, d}, dtype);
      const at::Tensor before = fused.clone();
      at::Tensor x = fused.narrow(1, 1, 3);
      rope_(x, table.cos_Pd, table.sin_Pd, positions, false);
      EXPECT_LT(relative(x, rotated(before.narrow(1, 1, 3), table, positions)), kBounds.of(dtype));
      EXPECT_TRUE(x[1].equal(before[1].narrow(0, 1, 3))) << "position 0 stays";
      rope_(x, table.cos_Pd, table.sin_Pd, positions, true);
      EXPECT_LT(relative(fused, before), 2 * kBounds.of(dtype));
      EXPECT_TRUE(fused.narrow(1, 0, 1).equal(before.narrow(1, 0, 1))) << "neighbours untouched";
      EXPECT_TRUE(fused.narrow(1, 4, 2).equal(before.narrow(1, 4, 2)));
    }
}

// Pairs of neighbours: the halves' rotation of the even, then the odd elements.
TEST(Rope, NeighboursAreHalvesInAnotherOrder) {
  for (const at::ScalarType dtype : testing::kDtypes) {
    const RopeTable table = rope_table({.head_dim = 10}, 40, dtype);
    const at::Tensor positions = at::tensor({39, 0, 7, 7, 1}, at::kLong);
    at::Tensor x = random({5, 3, 10}, dtype);
    at::Tensor halves = at::cat({x.slice(2, 0, 10, 2), x.slice(2, 1, 10, 2)}, 2);
    const at::Tensor before = x.clone();
    rope_(x, table.cos_Pd, table.sin_Pd, positions, false, RopePairs::kNeighbours);
    rope_(halves, table.cos_Pd, table.sin_Pd, positions, false);
    EXPECT_LT(relative(x.slice(2, 0, 10, 2), halves.narrow(2, 0, 5)), kBounds.of(dtype));
    EXPECT_LT(relative(x.slice(2, 1, 10, 2), halves.narrow(2, 5, 5)), kBounds.of(dtype));
    rope_(x, table.cos_Pd, table.sin_Pd, positions, true, RopePairs::kNeighbours);
    EXPECT_LT(relative(x, before), 2 * kBounds.of(dtype));
  }
}

TEST(Rope, ThreadsDoNotChangeBits) {
  const RopeTable table = rope_table({.head_dim = 64}, 512, at::kFloat);
  const at::Tensor x = random({512, 8, 64}, at::kFloat);
  const at::Tensor positions = at::arange(512, at::kLong);
  testing::with_threads(
      [&] {
        at::Tensor y = x.clone();
        rope_(y, table.cos_Pd, table.sin_Pd, positions, false);
        return y;
      },
      [](const at::Tensor& a, const at::Tensor& b) { EXPECT_TRUE(a.equal(b)); });
}

TEST(Rope, RefusesPositionsBeyondTheTable) {
  const RopeTable table = rope_table({.head_dim = 4}, 8, at::kFloat);
  at::Tensor x = random({1, 1, 4}, at::kFloat);
  EXPECT_THROW(rope_(x, table.cos_Pd, table.sin_Pd, at::tensor({8}, at::kLong), false), BugError);
}

TEST(RopeTable, PlainAndLinear) {
  const RopeTable table = rope_table({.head_dim = 4, .theta = 100.0}, 3, at::kDouble);
  EXPECT_DOUBLE_EQ(table.cos_Pd[2][0].item<double>(), std::cos(2.0));
  EXPECT_DOUBLE_EQ(table.sin_Pd[2][1].item<double>(), std::sin(0.2));
  const auto linear = rope_frequencies(
      {.head_dim = 4, .theta = 100.0, .stretch = RopeStretch::kLinear, .factor = 4.0});
  EXPECT_DOUBLE_EQ(linear[0], 0.25);
  EXPECT_DOUBLE_EQ(linear[1], 0.025);
}

// Llama 3.1's own settings: waves below 2,048 positions stay, above 8,192 they are 8 times longer.
TEST(RopeTable, Llama3) {
  RopeTableOptions o{.head_dim = 128, .theta = 500000.0};
  const auto plain = rope_frequencies(o);
  o.stretch = RopeStretch::kLlama3;
  o.factor = 8.0;
  const auto stretched = rope_frequencies(o);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double wave = 2.0 * std::numbers::pi / plain[i];
    const double ratio = stretched[i] / plain[i];
    const double keep = std::clamp((8192.0 / wave - 1.0) / 3.0, 0.0, 1.0);
    EXPECT_NEAR(ratio, (1.0 - keep) / 8.0 + keep, 1e-14);
  }
}

// YaRN on Llama 2: d 128, context 4,096, theta 10,000: the ramp runs over dimensions 20 to 46.
TEST(RopeTable, Yarn) {
  RopeTableOptions o{.head_dim = 128, .original_positions = 4096};
  const auto plain = rope_frequencies(o);
  o.stretch = RopeStretch::kYarn;
  o.factor = 16.0;
  const auto stretched = rope_frequencies(o);
  EXPECT_DOUBLE_EQ(stretched[0], plain[0]);
  EXPECT_DOUBLE_EQ(stretched[20], plain[20]);
  EXPECT_LT(stretched[21], plain[21]);
  EXPECT_NEAR(stretched[33] / plain[33], 0.5 + 0.5 / 16.0, 1e-12);
  EXPECT_GT(stretched[45], plain[45] / 16.0 * (1 + 1e-9));
  EXPECT_NEAR(stretched[46] / plain[46], 1.0 / 16.0, 1e-12);
  const RopeTable table = rope_table(o, 1, at::kDouble);
  EXPECT_NEAR(table.cos_Pd[0][0].item<double>(), 0.1 * std::log(16.0) + 1.0, 1e-14);
  o.attention_factor = 1.5;
  EXPECT_DOUBLE_EQ(rope_table(o, 1, at::kDouble).cos_Pd[0][0].item<double>(), 1.5);
}

}  // namespace
}  // namespace quatrain::kernels
