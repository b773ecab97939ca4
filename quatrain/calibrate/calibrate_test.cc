// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "quatrain/base/error.h"
#include "quatrain/calibrate/cluster_of.h"
#include "quatrain/planner/stragglers.h"

namespace quatrain {
namespace {

using ::testing::HasSubstr;

HostFacts two_ranks() { return {.memory_bytes = 16e9, .ranks = {.count = 2, .threads = 1}}; }

// What a machine of known constants would have measured.
std::vector<TrialResult> results_of(const ClusterSpec& cluster) {
  std::vector<TrialResult> results;
  for (const Trial& trial : default_trials({2, 1})) {
    // Ranks whose times differ so wait that share of a call.
    const double later = cluster.jitter * slowest_of(2);
    results.push_back({trial, predicted_seconds(trial, cluster, 2), later / (1 + later)});
    if (trial.kind == TrialKind::kStep) results.back().solo_gain = cluster.solo_gain;
  }
  return results;
}

ClusterSpec known() {
  ClusterSpec cluster;
  cluster.name = "known";
  cluster.peak_fp32 = 7e10;
  cluster.peak_bf16 = 3e10;
  cluster.memory_bytes = 8e9;
  cluster.memory_bandwidth = 6e9;
  cluster.memory_efficiency = 0.4;
  cluster.tile = 16;
  cluster.inner_ramp = 20;
  cluster.grouped_efficiency = 0.6;
  cluster.attention_efficiency = 0.4;
  cluster.launch_seconds = 2e-6;
  cluster.jitter = 0.08;
  cluster.solo_gain = 0.1;
  cluster.domain = 1024;
  cluster.domain_bandwidth = 2e9;
  cluster.domain_latency = 3e-5;
  cluster.network_bandwidth = 2e9;
  return cluster;
}

TEST(CalibrateTest, FindsTheConstantsOfAKnownMachine) {
  const ClusterSpec found = cluster_of(results_of(known()), two_ranks());
  EXPECT_NEAR(found.peak_fp32 / 7e10, 1, 0.01);
  EXPECT_NEAR(found.peak_bf16 / 3e10, 1, 0.01);
  EXPECT_NEAR(found.memory_bandwidth / 6e9, 1, 0.01);
  EXPECT_NEAR(found.attention_efficiency, 0.4, 0.01);
  EXPECT_NEAR(found.memory_efficiency, 0.4, 0.02);
  EXPECT_EQ(found.inner_ramp, 20);
  EXPECT_NEAR(found.jitter, 0.08, 1e-9);
  EXPECT_NEAR(found.solo_gain, 0.1, 0.01);
  EXPECT_NEAR(found.grouped_efficiency, 0.6, 0.01);
  EXPECT_NEAR(found.domain_latency / 3e-5, 1, 0.05);
  EXPECT_NEAR(found.domain_bandwidth / 2e9, 1, 0.05);
  EXPECT_EQ(found.memory_bytes, 8e9);  // of 16 GB, two ranks
}

// Units that multiply 16 bit faster than memory feeds them: the fit knows no more than a bound.
TEST(CalibrateTest, APeakThatMemoryHidesIsBounded) {
  std::vector<TrialResult> results = results_of(known());
  double fastest = 0;
  for (TrialResult& result : results) {
    if (result.trial.kind != TrialKind::kProduct) continue;
    if (result.trial.dtype != Dtype::kBFloat16) continue;
    *result.seconds /= 1000;
    fastest = std::max(fastest, flops(result.trial) / *result.seconds);
  }
  EXPECT_LE(cluster_of(results, two_ranks()).peak_bf16, 2.001 * fastest);
}

// A step that finds its operands in caches, faster than the bandwidth of copies explains.
TEST(CalibrateTest, AQuickStepQuickensProducts) {
  std::vector<TrialResult> results = results_of(known());
  ClusterSpec quick = known();
  quick.memory_efficiency = 1;
  quick.peak_fp32 *= 1.1;
  quick.attention_efficiency /= 1.1;
  for (TrialResult& result : results) {
    if (result.trial.kind == TrialKind::kStep) {
      result.seconds = predicted_seconds(result.trial, quick, 2);
    }
  }
  const ClusterSpec found = cluster_of(results, two_ranks());
  EXPECT_NEAR(found.peak_fp32 / 7e10, 1.1, 0.01);
  EXPECT_NEAR(found.attention_efficiency, 0.4 / 1.1, 0.01);
}

TEST(CalibrateTest, TheFileIsReadAgain) {
  const std::vector<TrialResult> results = results_of(known());
  const ClusterSpec found = cluster_of(results, two_ranks());
  const std::string text = calibrated_toml(found, two_ranks(), results);
  const ClusterSpec again = cluster_from_toml(text, "this-machine.toml");
  EXPECT_NEAR(again.peak_fp32 / found.peak_fp32, 1, 1e-6);
  EXPECT_THAT(text, HasSubstr("2 thread ranks of 1 compute threads, 33 of 33 trials"));
}

TEST(CalibrateTest, case_166_FailedTrialsAreLeftOutAndKindsWithoutAnyAreNamed) {
  std::vector<TrialResult> results = results_of(known());
  results[0].seconds.reset();
  results[0].failure = "out of memory";
  EXPECT_NEAR(cluster_of(results, two_ranks()).peak_fp32 / 7e10, 1, 0.01);
  for (TrialResult& result : results) {
    if (result.trial.kind != TrialKind::kProduct) result.seconds.reset();
  }
  try {
    cluster_of(results, two_ranks());
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no trial of memory worked"));
    EXPECT_THAT(error.what(), HasSubstr("no trial of collectives worked"));
  }
}

TEST(CalibrateTest, NamesAreUnique) {
  std::set<std::string> names;
  const std::vector<Trial> trials = default_trials({2, 1});
  for (const Trial& trial : trials) names.insert(name(trial));
  EXPECT_EQ(names.size(), trials.size());
}

TEST(CalibrateTest, EveryKindIsMeasured) {
  for (Trial trial : default_trials({2, 1})) {
    trial.m = trial.n = trial.k = 32;
    trial.tokens = 16;
    trial.bytes = 4096;
    const Measurement found = measure(trial, {2, 1}, 1e-4);
    EXPECT_GT(found.seconds, 0) << name(trial);
    EXPECT_LT(found.seconds, 5) << name(trial);
    EXPECT_GE(found.waiting, 0) << name(trial);
    EXPECT_LT(found.waiting, 1) << name(trial);
  }
}

}  // namespace
}  // namespace quatrain
