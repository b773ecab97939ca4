// SPDX-License-Identifier: Apache-2.0
#include "quatrain/infer/sample.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/base/rng.h"

namespace quatrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kDraws = 100'000;

std::vector<int> counts(const std::vector<double>& logits, const SamplingOptions& options) {
  const RandomStream stream(7, "sampling test");
  std::vector<int> out(logits.size(), 0);
  for (int i = 0; i < kDraws; ++i) {
    ++out[static_cast<std::size_t>(
        sample(logits, options, stream.uniform(static_cast<std::uint64_t>(i))))];
  }
  return out;
}

// Each count within five standard deviations of its expectation.
void expect_frequencies(const std::vector<int>& seen, const std::vector<double>& probabilities) {
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const double p = probabilities[i];
    const double bound = 5.0 * std::sqrt(kDraws * p * (1.0 - p));
    EXPECT_NEAR(seen[i], kDraws * p, bound) << "token " << i;
  }
}

std::vector<double> logs(const std::vector<double>& probabilities) {
  std::vector<double> out;
  for (double p : probabilities) out.push_back(std::log(p) + 3.0);
  return out;
}

const std::vector<double> kFour{0.1, 0.4, 0.2, 0.3};

TEST(Sample, DrawsTheSoftmax) { expect_frequencies(counts(logs(kFour), {}), kFour); }

TEST(Sample, TemperatureFlattensAndSharpens) {
  // p^(1/t), normalised.
  for (const double t : {0.5, 2.0}) {
    std::vector<double> expected;
    double sum = 0.0;
    for (double p : kFour) sum += std::pow(p, 1.0 / t);
    for (double p : kFour) expected.push_back(std::pow(p, 1.0 / t) / sum);
    expect_frequencies(counts(logs(kFour), {.temperature = t}), expected);
  }
}

TEST(Sample, TopKKeepsTheLikeliest) {
  expect_frequencies(counts(logs(kFour), {.top_k = 2}), {0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0});
  expect_frequencies(counts(logs(kFour), {.top_k = 100}), kFour);
  EXPECT_EQ(counts({1.0, 2.0, 2.0}, {.top_k = 1})[1], kDraws);
}

TEST(Sample, TopPKeepsTheFewestThatHoldIt) {
  expect_frequencies(counts(logs(kFour), {.top_p = 0.65}), {0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0});
  expect_frequencies(counts(logs(kFour), {.top_p = 0.75}), {0.0, 4.0 / 9.0, 2.0 / 9.0, 3.0 / 9.0});
  EXPECT_EQ(counts(logs(kFour), {.top_p = 1e-9})[1], kDraws);
  // After top-k: of the two that are left, the first alone holds 4/7.
  EXPECT_EQ(counts(logs(kFour), {.top_k = 2, .top_p = 0.5})[1], kDraws);
}

TEST(Sample, GreedyTakesTheFirstOfEquals) {
  EXPECT_EQ(sample(std::vector<double>{0.0, 5.0, 5.0, -1.0}, {.temperature = 0.0}, 0.99), 1);
}

TEST(Sample, EdgesOfTheDraw) {
  const double last = 1.0 - 0x1p-53;
  const double never = -std::numeric_limits<double>::infinity();
  EXPECT_EQ(sample(logs(kFour), {}, 0.0), 0);
  EXPECT_EQ(sample(logs(kFour), {}, last), 3);
  EXPECT_EQ(sample(std::vector<double>{never, 0.0, never}, {}, 0.0), 1);
  EXPECT_EQ(sample(std::vector<double>{never, 0.0, never}, {}, last), 1);
}

TEST(Sample, RefusesDamagedLogits) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(sample(std::vector<double>{0.0, nan}, {}, 0.5), DataError);
  EXPECT_THROW(sample(std::vector<double>{0.0, HUGE_VAL}, {.temperature = 0.0}, 0.5), DataError);
}

TEST(Sample, NamesEveryBadOption) {
  try {
    check(SamplingOptions{.temperature = -1.0, .top_k = -2, .top_p = 1.5});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("temperature: -1"), HasSubstr("top-k: -2"),
                                    HasSubstr("top-p: 1.5")));
  }
  EXPECT_THROW(check(SamplingOptions{.top_p = 0.0}), ConfigError);
  EXPECT_THROW(check(SamplingOptions{.temperature = std::nan("")}), ConfigError);
  EXPECT_NO_THROW(check(SamplingOptions{}));
}

}  // namespace
}  // namespace quatrain
