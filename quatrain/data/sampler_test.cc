// SPDX-License-Identifier: Apache-2.0
// The sampler: permutations, mixtures and what ranks are dealt.
#include "quatrain/data/sampler.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "quatrain/base/error.h"

namespace quatrain {
namespace {

using ::testing::ElementsAre;
using Counts = std::vector<std::int64_t>;

std::vector<Sample> run(const Sampler& sampler, std::int64_t first, std::int64_t steps,
                        std::int64_t batch) {
  std::vector<Sample> all;
  for (std::int64_t step = first; step < first + steps; ++step) {
    const auto samples = sampler.samples(step, 0, batch);
    all.insert(all.end(), samples.begin(), samples.end());
  }
  return all;
}

TEST(PermutationTest, IsABijectionOfEverySize) {
  for (const std::int64_t size : {1, 2, 3, 4, 5, 7, 8, 9, 100, 1023, 1024, 1025, 65537}) {
    const Permutation permutation(1, 2, size);
    std::vector<bool> seen(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t to = permutation(i);
      ASSERT_TRUE(to >= 0 && to < size);
      ASSERT_FALSE(seen[static_cast<std::size_t>(to)]);
      seen[static_cast<std::size_t>(to)] = true;
    }
  }
}

TEST(PermutationTest, MixesAndDependsOnTheKeys) {
  const std::int64_t size = 10007;
  const Permutation a(1, 2, size), b(1, 3, size), c(2, 2, size);
  int fixed = 0, neighbours = 0, same_ab = 0, same_ac = 0;
  double correlation = 0;
  const double mean = (size - 1) / 2.0;
  for (std::int64_t i = 0; i < size; ++i) {
    fixed += a(i) == i;
    same_ab += a(i) == b(i);
    same_ac += a(i) == c(i);
    neighbours += i > 0 && std::abs(a(i) - a(i - 1)) == 1;
    correlation += (static_cast<double>(i) - mean) * (static_cast<double>(a(i)) - mean);
  }
  EXPECT_LT(fixed, 10);
  EXPECT_LT(same_ab, 10);
  EXPECT_LT(same_ac, 10);
  EXPECT_LT(neighbours, 15);
  const double variance = (static_cast<double>(size) * static_cast<double>(size) - 1) / 12;
  EXPECT_LT(std::abs(correlation / (variance * static_cast<double>(size))), 0.05);
}

TEST(PermutationTest, SizesBeyond32Bits) {
  const std::int64_t size = (1LL << 33) + 11;
  const Permutation permutation(5, 6, size);
  std::set<std::int64_t> seen;
  for (std::int64_t i = 0; i < 1000; ++i) seen.insert(permutation(size - 1 - i));
  EXPECT_EQ(seen.size(), 1000U);
  EXPECT_LT(*seen.rbegin(), size);
  EXPECT_GT(*seen.rbegin(), 1LL << 32);
}

TEST(MixtureTest, case_116_EveryPrefixIsWithinOneSampleOfItsWeights) {
  for (const std::vector<double>& weights :
       std::vector<std::vector<double>>{{1},
                                        {0.001, 0.999},
                                        {0.5, 0, 0.5},
                                        {1e-9, 1},
                                        {1, 1, 1},
                                        {2, 1},
                                        {7, 3, 1, 1, 1},
                                        {0.4, 0.3, 0.1, 0.1, 0.05, 0.05},
                                        {5, 1e-9, 0.001, 0.999, 0},
                                        {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 13}}) {
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    const Mixture mixture(weights);
    std::vector<int> sources(20000);
    Counts counts;
    mixture.sources(0, sources, counts);
    double worst = 0;
    for (std::size_t n = 0; n < sources.size(); ++n) {
      ++counts[static_cast<std::size_t>(sources[n])];
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const double target = weights[i] / sum * static_cast<double>(n + 1);
        worst = std::max(worst, std::abs(static_cast<double>(counts[i]) - target));
        if (weights[i] == 0) {
          ASSERT_EQ(counts[i], 0);
        }
      }
    }
    EXPECT_LE(worst, 1.0) << ::testing::PrintToString(weights);
    EXPECT_EQ(mixture.counts(20000), counts);
  }
}

TEST(MixtureTest, AnySlotIsTheSameHoweverItIsReached) {
  const Mixture forward({3, 2, 1}), jumps({3, 2, 1});
  std::vector<int> all(500), part(20);
  Counts counts;
  forward.sources(0, all, counts);
  for (const std::int64_t begin : {480, 20, 300, 0, 299, 140, 7, 450, 3, 33, 333}) {
    jumps.sources(begin, part, counts);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + begin)) << begin;
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(counts[i], std::count(all.begin(), all.begin() + begin, static_cast<int>(i)));
    }
  }
}

TEST(MixtureTest, BadWeightsAreRefused) {
  for (const std::vector<double>& weights :
       std::vector<std::vector<double>>{{}, {0}, {0, 0}, {-1, 2}, {NAN}, {INFINITY}}) {
    EXPECT_THROW(Mixture{weights}, ConfigError);
  }
}

TEST(SamplerTest, case_116_TinySetsWrapAround) {
  const Sampler sampler({{1, 0.999}, {3, 0.001}, {5, 0}, {0, 0}}, {.global_batch = 100});
  std::map<int, std::map<std::int64_t, int>> used;
  for (const Sample& sample : run(sampler, 1, 100, 100)) ++used[sample.source][sample.index];
  EXPECT_EQ(used[0][0], 9990);
  EXPECT_EQ(used[1].size(), 3U);
  EXPECT_FALSE(used.contains(2));
  EXPECT_THROW(Sampler({{0, 1.0}}, {}), ConfigError);
}

TEST(SamplerTest, case_119_SamplesAreUsedEquallyWhereverTheEpochEnds) {
  for (const std::int64_t samples : {1, 2, 7, 10, 97}) {
    for (const std::int64_t batch : {1, 3, 8}) {
      const Sampler sampler({{samples, 1.0}}, {.seed = 3, .global_batch = batch});
      std::vector<int> used(static_cast<std::size_t>(samples));
      const auto all = run(sampler, 1, 3 * samples / batch + 2, batch);
      for (std::size_t n = 0; n < all.size(); ++n) {
        ++used[static_cast<std::size_t>(all[n].index)];
        const auto [least, most] = std::minmax_element(used.begin(), used.end());
        ASSERT_LE(*most - *least, 1) << samples << " samples, prefix " << n + 1;
      }
    }
  }
}

TEST(SamplerTest, EpochsDifferAndFollowTheSeed) {
  const Sampler a({{50, 1.0}}, {.seed = 1, .global_batch = 50});
  const Sampler b({{50, 1.0}}, {.seed = 2, .global_batch = 50});
  EXPECT_NE(a.samples(1, 0, 50), a.samples(2, 0, 50));
  EXPECT_NE(a.samples(1, 0, 50), b.samples(1, 0, 50));
  const Sampler plain({{50, 1.0}}, {.seed = 1, .global_batch = 50, .shuffle = false});
  EXPECT_EQ(plain.samples(2, 3, 4)[0].index, 3);
}

TEST(SamplerTest, case_077_EveryRankHasTheSameNumberOfMicrobatches) {
  for (int rank = 0; rank < 3; ++rank) {
    const Deal six = deal(6, 2, rank, 3);
    EXPECT_EQ(six.microbatches, 1);
    EXPECT_EQ(six.begin, 2 * rank);
    EXPECT_EQ(six.end, 2 * rank + 2);
    EXPECT_EQ(deal(10, 2, rank, 3).microbatches, 2);
  }
  // 10 samples, batches of 6: three epochs and a resume, consumed 6 a step on all.
  const Sampler whole({{10, 1.0}}, {.seed = 4, .global_batch = 6});
  std::vector<int> used(10);
  for (const Sample& sample : run(whole, 1, 5, 6)) ++used[static_cast<std::size_t>(sample.index)];
  EXPECT_EQ(used, std::vector<int>(10, 3));
  EXPECT_THAT(whole.cursor(4), ElementsAre(18));
  const Sampler resumed({{10, 1.0}},
                        {.seed = 4, .global_batch = 6, .cursor = whole.cursor(4), .first_step = 4});
  EXPECT_EQ(run(resumed, 4, 2, 6), run(whole, 4, 2, 6));
}

TEST(SamplerTest, DealsCoverTheBatchOnce) {
  for (const std::int64_t batch : {1, 2, 5, 6, 7, 12}) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      std::int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Deal mine = deal(batch, 2, rank, ranks);
        EXPECT_EQ(mine.begin, next);
        EXPECT_LE(mine.end - mine.begin, 2 * mine.microbatches);
        EXPECT_EQ(mine.microbatches, deal(batch, 2, 0, ranks).microbatches);
        next = mine.end;
      }
      EXPECT_EQ(next, batch);
    }
  }
}

TEST(SamplerTest, case_043_case_121_ResumedTwiceIsTheUninterruptedRun) {
  const std::vector<Sampler::Source> sources = {{40, 3}, {11, 2}, {7, 1}};
  const Sampler whole(sources, {.seed = 9, .global_batch = 4});
  const auto want = run(whole, 1, 60, 4);
  const Sampler second(
      sources, {.seed = 9, .global_batch = 4, .cursor = whole.cursor(31), .first_step = 31});
  const Sampler third(
      sources, {.seed = 9, .global_batch = 4, .cursor = second.cursor(41), .first_step = 41});
  EXPECT_EQ(second.cursor(41), whole.cursor(41));
  EXPECT_EQ(run(second, 31, 30, 4), std::vector<Sample>(want.begin() + 120, want.end()));
  EXPECT_EQ(run(third, 41, 20, 4), std::vector<Sample>(want.begin() + 160, want.end()));
}

TEST(SamplerTest, case_118_NewWeightsContinueEverySource) {
  const std::int64_t batch = 5;
  const Sampler before({{100, 1}, {100, 1}}, {.seed = 2, .global_batch = batch});
  std::set<std::pair<int, std::int64_t>> seen;
  for (const Sample& sample : run(before, 1, 12, batch)) seen.insert({sample.source, sample.index});
  const Counts cursor = before.cursor(13);
  const Sampler after({{100, 2}, {100, 1}},
                      {.seed = 2, .global_batch = batch, .cursor = cursor, .first_step = 13});
  const auto more = run(after, 13, 18, batch);  // 60 of source 0, 30 of source 1
  for (const Sample& sample : more) seen.insert({sample.source, sample.index});
  EXPECT_EQ(seen.size(), 60U + 90U);  // nothing twice: no source has ended its epoch
  const auto first = std::count_if(more.begin(), more.end(),
                                   [](const Sample& sample) { return sample.source == 0; });
  EXPECT_NEAR(static_cast<double>(first), 60, 1);
  // A second resume under the new weights is the same run.
  const Sampler again(
      {{100, 2}, {100, 1}},
      {.seed = 2, .global_batch = batch, .cursor = after.cursor(20), .first_step = 20});
  EXPECT_EQ(run(again, 20, 5, batch), run(after, 20, 5, batch));
}

TEST(SamplerTest, case_106_CountersBeyond32Bits) {
  for (const std::int64_t start : {(1LL << 31) - 3, (1LL << 32) - 3, (1LL << 40) + 1}) {
    const Sampler sampler({{1000, 1}}, {.global_batch = 8, .cursor = {start}, .first_step = 7});
    EXPECT_THAT(sampler.cursor(9), ElementsAre(start + 16));
    const Sampler fresh({{1000, 1}}, {.global_batch = 8, .shuffle = false, .cursor = {start}});
    EXPECT_EQ(fresh.samples(1, 5, 6)[0].index, (start + 5) % 1000);
  }
  const Sampler large({{1LL << 34, 1}}, {.global_batch = 64});
  std::int64_t most = 0;
  for (const Sample& sample : run(large, 1, 4, 64)) most = std::max(most, sample.index);
  EXPECT_GT(most, 1LL << 33);
}

TEST(SamplerTest, CursorsThatDoNotFitAreRefused) {
  EXPECT_THROW(Sampler({{5, 1}}, {.cursor = {1, 2}}), ConfigError);
  EXPECT_THROW(Sampler({{5, 1}}, {.cursor = {-1}}), ConfigError);
  const Sampler added({{5, 1}, {5, 1}}, {.global_batch = 2, .cursor = {4}});
  EXPECT_EQ(added.cursor(1), (Counts{4, 0}));
}

}  // namespace
}  // namespace quatrain
