// SPDX-License-Identifier: Apache-2.0
// Philox against its published vectors (Random123, kat_vectors), draws against their distributions,
// and values that must never change: a changed bit here changes every initialised weight.
#include "quatrain/base/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>
#include <string>
#include <vector>

#include "quatrain/base/error.h"

namespace quatrain {
namespace {

TEST(Philox, PublishedKnownAnswers) {
  constexpr std::uint32_t kOnes = 0xFFFFFFFF;
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32_10({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, ValuesNeverChange) {
  const RandomStream named(7, "w");
  EXPECT_EQ(named.bits(0), 0xccb379bb9e92a7fbULL);
  EXPECT_EQ(named.bits(1), 0x7471cfa26d3162ddULL);
  EXPECT_EQ(named.normal(0), -0x1.b8aeb0119fd6cp+0);
  EXPECT_EQ(named.normal(1), 0x1.00e42f2a2cd4p-1);
  EXPECT_EQ(named.normal(2), 0x1.9cdb56304ac25p-4);
  EXPECT_EQ(named.normal(3), -0x1.df667043b416cp-1);
  EXPECT_EQ(named.uniform(0), 0x1.9966f3773d254p-1);
  EXPECT_EQ(RandomStream(7, 3).uniform(0), 0x1.5e322c1bc7d96p-1);
  EXPECT_EQ(stable_hash(""), 0x2d06800538d394c2ULL);  // XXH3's own check value
}

TEST(RandomStream, NormalIsBoxMullerOfOneBlock) {
  const RandomStream stream(11, "layers.0.weight");
  for (std::uint64_t i = 0; i < 40000; i += 2) {
    const double u = 1 - static_cast<double>(stream.bits(i) >> 12) * 0x1p-52;
    const double v = static_cast<double>(stream.bits(i + 1) >> 12) * 0x1p-52;
    const double radius = std::sqrt(-2 * std::log(u));
    const double turn = 2 * std::numbers::pi * v;
    EXPECT_NEAR(stream.normal(i), radius * std::cos(turn), 1e-14) << i;
    EXPECT_NEAR(stream.normal(i + 1), radius * std::sin(turn), 1e-14) << i;
  }
}

struct Moments {
  double mean = 0, variance = 0, skew = 0, kurtosis = 0;
};
Moments moments(const std::vector<double>& x) {
  Moments m;
  const double n = static_cast<double>(x.size());
  for (double value : x) m.mean += value / n;
  for (double value : x) {
    const double d = value - m.mean;
    m.variance += d * d / n;
    m.skew += d * d * d / n;
    m.kurtosis += d * d * d * d / n;
  }
  return m;
}

TEST(RandomStream, NormalStatistics) {
  std::vector<double> x(1 << 20);
  RandomStream(1, "statistics").fill_normal(0, x);
  const Moments m = moments(x);  // five standard errors each
  EXPECT_NEAR(m.mean, 0, 5.0 / 1024);
  EXPECT_NEAR(m.variance, 1, 5 * std::sqrt(2.0) / 1024);
  EXPECT_NEAR(m.skew, 0, 5 * std::sqrt(15.0) / 1024);
  EXPECT_NEAR(m.kurtosis, 3, 5 * std::sqrt(96.0) / 1024);
  const auto beyond = std::count_if(x.begin(), x.end(), [](double v) { return std::abs(v) > 3; });
  EXPECT_NEAR(static_cast<double>(beyond) / (1 << 20), 0.0026998, 0.00026);
  double neighbours = 0;
  for (std::size_t i = 0; i + 1 < x.size(); ++i) neighbours += x[i] * x[i + 1];
  EXPECT_NEAR(neighbours / (1 << 20), 0, 5.0 / 1024);
}

TEST(RandomStream, UniformStatistics) {
  const RandomStream stream(2, 5);
  constexpr int kBuckets = 64, kDraws = 1 << 18;
  std::vector<double> x(kDraws);
  stream.fill_uniform(0, x);
  std::vector<double> counts(kBuckets);
  for (double value : x) {
    ASSERT_GE(value, 0);
    ASSERT_LT(value, 1);
    counts[static_cast<std::size_t>(value * kBuckets)] += 1;
  }
  double chi2 = 0;
  constexpr double kExpected = static_cast<double>(kDraws) / kBuckets;
  for (double count : counts) chi2 += (count - kExpected) * (count - kExpected) / kExpected;
  EXPECT_LT(chi2, 63 + 5 * std::sqrt(2.0 * 63));
  EXPECT_NEAR(moments(x).variance, 1.0 / 12, 5e-4);
}

TEST(RandomStream, FillGivesTheSingleDraws) {
  const RandomStream stream(3, "fill");
  for (std::uint64_t begin : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{254},
                              std::uint64_t{255}, std::uint64_t{0x1FFFFFFF1}}) {
    for (std::size_t count : {0U, 1U, 2U, 3U, 255U, 256U, 257U, 1000U}) {
      std::vector<double> normal(count), uniform(count);
      std::vector<float> normal32(count), uniform32(count);
      stream.fill_normal(begin, normal);
      stream.fill_uniform(begin, uniform);
      stream.fill_normal(begin, normal32);
      stream.fill_uniform(begin, uniform32);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(normal[i], stream.normal(begin + i)) << begin << " + " << i;
        ASSERT_EQ(uniform[i], stream.uniform(begin + i)) << begin << " + " << i;
        ASSERT_EQ(normal32[i], static_cast<float>(stream.normal(begin + i)));
        ASSERT_EQ(uniform32[i], static_cast<float>(stream.uniform(begin + i)));
      }
    }
  }
}

TEST(RandomStream, StreamsDiffer) {
  std::set<std::uint64_t> first;
  for (std::uint64_t seed : {0ULL, 1ULL, 1ULL << 32, ~0ULL}) {
    for (const char* name : {"", "a", "b", "layers.0.weight"}) {
      first.insert(RandomStream(seed, name).bits(0));
      first.insert(RandomStream(seed, stable_hash(name)).bits(0));  // a number is no name
    }
  }
  EXPECT_EQ(first.size(), 32U);
}

TEST(RandomStream, BelowIsInRangeAndEven) {
  const RandomStream stream(4, "below");
  std::vector<int> counts(7);
  for (std::uint64_t i = 0; i < 70000; ++i) ++counts[stream.below(i, 7)];
  for (int count : counts) EXPECT_NEAR(count, 10000, 500);
  EXPECT_EQ(stream.below(9, 1), 0U);
  EXPECT_LT(stream.below(9, ~0ULL), ~0ULL);
  EXPECT_THROW(stream.below(0, 0), BugError);
}

}  // namespace
}  // namespace quatrain
