// SPDX-License-Identifier: Apache-2.0
// Dropout's masks: their rate, their independence of the cut, and what they are keyed by.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "quatrain/base/rng.h"
#include "quatrain/kernels/pointwise.h"
#include "quatrain/kernels/testing.h"

namespace quatrain::kernels {
namespace {

DropoutKey key_of(std::int64_t rows) {
  DropoutKey key;
  key.seed = 42;
  key.step = 7;
  key.site = 3;
  key.samples_N = at::full({rows}, 11, at::kLong);
  key.positions_N = at::arange(rows, at::kLong);
  return key;
}
at::Tensor mask(std::int64_t rows, std::int64_t columns, double p, const DropoutKey& key) {
  at::Tensor x = at::ones({rows, columns}, at::kFloat);
  dropout_(x, p, key);
  return x;
}

TEST(Dropout, KeepsTheRateAndTheMean) {
  const at::Tensor x = mask(200, 1001, 0.3, key_of(200));
  const double kept = x.ne(0).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(kept, 0.7, 0.005);  // 5 standard deviations
  EXPECT_FLOAT_EQ(x.max().item<float>(), 1.0F / 0.7F);
}

// The draws are Philox's own: words of the counter (column, site, step) under the row's key.
TEST(Dropout, DrawsAreThoseOfTheGenerator) {
  const DropoutKey key = key_of(3);
  const at::Tensor x = mask(3, 150, 0.5, key);
  for (std::uint32_t n = 0; n < 3; ++n) {
    const PhiloxBlock row = philox4x32_10({11, 0, n, 0}, {42, 0});
    for (std::uint32_t c = 0; c < 150; ++c) {
      const PhiloxBlock draw = philox4x32_10({c / 64 * 16 + c % 16, 3, 7, 0}, {row[0], row[1]});
      EXPECT_EQ(x[n][c].item<float>() != 0.0F, draw[c % 64 / 16] >= 0x80000000U);
    }
  }
}

// The same draws as numbers: within their bounds, even, and the same for any cut of rows.
TEST(Jitter, FactorsAreTheGeneratorsAndIndependentOfTheCut) {
  const DropoutKey key = key_of(40);
  at::Tensor x = at::ones({40, 150}, at::kDouble);
  jitter_(x, 0.1, key);
  for (std::uint32_t n = 0; n < 3; ++n) {
    const PhiloxBlock row = philox4x32_10({11, 0, n, 0}, {42, 0});
    for (std::uint32_t c = 0; c < 150; ++c) {
      const PhiloxBlock draw = philox4x32_10({c / 64 * 16 + c % 16, 3, 7, 0}, {row[0], row[1]});
      EXPECT_NEAR(x[n][c].item<double>(), 0.9 + 0.2 * draw[c % 64 / 16] / 4294967296.0, 1e-15);
    }
  }
  EXPECT_GE(x.min().item<double>(), 0.9);
  EXPECT_LT(x.max().item<double>(), 1.1);
  EXPECT_NEAR(x.mean().item<double>(), 1.0, 5 * 0.0577 / 77.0);  // 5 standard deviations
  DropoutKey part = key;
  part.samples_N = key.samples_N.narrow(0, 2, 5);
  part.positions_N = key.positions_N.narrow(0, 2, 5);
  part.column_begin = 63;
  at::Tensor y = at::ones({5, 70}, at::kDouble);
  jitter_(y, 0.1, part);
  EXPECT_TRUE(y.equal(x.narrow(0, 2, 5).narrow(1, 63, 70)));
  const at::Tensor before = y.clone();
  jitter_(y, 0.0, part);
  EXPECT_TRUE(y.equal(before));
}

TEST(Dropout, CutsDoNotChangeElements) {
  const DropoutKey key = key_of(9);
  const at::Tensor whole = mask(9, 333, 0.4, key);
  for (const std::int64_t begin : {0, 1, 63, 64, 130})
    for (const std::int64_t count : {1, 64, 65, 200}) {
      DropoutKey part = key;
      part.samples_N = key.samples_N.narrow(0, 2, 5);
      part.positions_N = key.positions_N.narrow(0, 2, 5);
      part.column_begin = begin;
      EXPECT_TRUE(mask(5, count, 0.4, part).equal(whole.narrow(0, 2, 5).narrow(1, begin, count)));
    }
}

TEST(Dropout, EveryPartOfTheKeyCounts) {
  const DropoutKey key = key_of(4);
  const at::Tensor base = mask(4, 64, 0.5, key);
  EXPECT_TRUE(mask(4, 64, 0.5, key).equal(base));
  EXPECT_FALSE(base[0].equal(base[1])) << "position";
  DropoutKey other = key;
  other.seed += std::uint64_t{1} << 40;
  EXPECT_FALSE(mask(4, 64, 0.5, other).equal(base)) << "seed";
  other = key;
  other.step += 1;
  EXPECT_FALSE(mask(4, 64, 0.5, other).equal(base)) << "step";
  other = key;
  other.site += 1;
  EXPECT_FALSE(mask(4, 64, 0.5, other).equal(base)) << "site";
  other = key;
  other.samples_N = key.samples_N.add(std::int64_t{1} << 35);
  EXPECT_FALSE(mask(4, 64, 0.5, other).equal(base)) << "sample";
}

TEST(Dropout, DtypesAndPaddedRowsAgree) {
  const DropoutKey key = key_of(6);
  const at::Tensor kept = mask(6, 100, 0.25, key).ne(0);
  for (const at::ScalarType dtype : testing::kDtypes) {
    const at::Tensor wide_rows = testing::random({6, 130}, dtype);
    const at::Tensor before = wide_rows.clone();
    at::Tensor x = wide_rows.narrow(1, 10, 100);
    dropout_(x, 0.25, key);
    const at::Tensor want = before.narrow(1, 10, 100).mul(1.0 / 0.75).mul(kept);
    EXPECT_LT(testing::relative(x, want), 1e-2);
    EXPECT_TRUE(x.ne(0).equal(kept));
    EXPECT_TRUE(wide_rows.narrow(1, 0, 10).equal(before.narrow(1, 0, 10)));
    EXPECT_TRUE(wide_rows.narrow(1, 110, 20).equal(before.narrow(1, 110, 20)));
    dropout_(x, 0.0, key);
    EXPECT_TRUE(x.ne(0).equal(kept));
  }
}

TEST(Dropout, ThreadsDoNotChangeBits) {
  const DropoutKey key = key_of(300);
  testing::with_threads([&] { return mask(300, 257, 0.1, key); },
                        [](const at::Tensor& a, const at::Tensor& b) { EXPECT_TRUE(a.equal(b)); });
}

}  // namespace
}  // namespace quatrain::kernels
