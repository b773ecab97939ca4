// SPDX-License-Identifier: Apache-2.0
// See cluster_of.h.
#include "quatrain/calibrate/cluster_of.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/base/median.h"
#include "quatrain/calibrate/step_trial.h"
#include "quatrain/planner/estimate.h"
#include "quatrain/planner/op_time.h"
#include "quatrain/planner/stragglers.h"

namespace quatrain {
namespace {

constexpr int kRounds = 6;  // rates enter through roofs, so a step to the median is taken again
constexpr double kSmallMessage = 64 * 1024;
constexpr double kLeastMemoryEfficiency = 0.02;
constexpr double kMostOverMeasured = 2;  // a peak is no further above what was reached

using Results = std::vector<const TrialResult*>;

Results that(std::span<const TrialResult> results, const std::function<bool(const Trial&)>& of) {
  Results chosen;
  for (const TrialResult& result : results) {
    if (result.seconds && of(result.trial)) chosen.push_back(&result);
  }
  return chosen;
}

// Changes `rate` until the median trial takes as long as it did.
void match(ClusterSpec& cluster, double ClusterSpec::*rate, const Results& results, int ranks) {
  for (int round = 0; round < kRounds && !results.empty(); ++round) {
    std::vector<double> ratios;
    for (const TrialResult* result : results) {
      ratios.push_back(predicted_seconds(result->trial, cluster, ranks) / *result->seconds);
    }
    cluster.*rate *= median(std::move(ratios));
  }
}

// Products that memory bounds say nothing of the peak, and let a fit run away with it.
void bound_peak(ClusterSpec& cluster, double ClusterSpec::*peak, const Results& products) {
  double fastest = 0;
  for (const TrialResult* result : products) {
    fastest = std::max(fastest, flops(result->trial) / *result->seconds);
  }
  if (fastest > 0) cluster.*peak = std::min(cluster.*peak, kMostOverMeasured * fastest);
}

// What no trial can tell, and where the fit starts.
ClusterSpec start(const HostFacts& host) {
  ClusterSpec cluster;
  cluster.name = "this-machine";
  cluster.peak_bf16 = cluster.peak_fp32 = 1e11;
  cluster.memory_bytes = host.memory_bytes / host.ranks.count;
  cluster.memory_bandwidth = 1e10;
  cluster.attention_efficiency = 0.5;
  cluster.launch_seconds = 2e-6;
  cluster.tile = 16;
  cluster.theft = 1;      // a rank's own threads move its bytes
  cluster.domain = 1024;  // ranks of one host reach each other alike, however many a question has
  cluster.domain_bandwidth = 1e9;
  cluster.network_bandwidth = 1e9;
  cluster.overhead_bytes = 200e6;
  cluster.fragmentation = 0.03;
  return cluster;
}

Problems missing(std::span<const TrialResult> results, const HostFacts& host) {
  Problems problems;
  const auto need = [&](TrialKind kind, const char* what) {
    const auto worked = [kind](const TrialResult& result) {
      return result.trial.kind == kind && result.seconds;
    };
    if (!std::ranges::any_of(results, worked)) {
      problems.push_back({"calibrate", fmt::format("no trial of {} worked", what),
                          "the table says why; free memory, or fewer ranks"});
    }
  };
  need(TrialKind::kProduct, "products");
  need(TrialKind::kCopy, "memory");
  if (host.ranks.count > 1) need(TrialKind::kCollective, "collectives");
  return problems;
}

bool large(const Trial& trial) {
  return trial.kind == TrialKind::kCollective && static_cast<double>(trial.bytes) > kSmallMessage;
}
bool small(const Trial& trial) { return trial.kind == TrialKind::kCollective && !large(trial); }

std::function<bool(const Trial&)> product_in(Dtype dtype) {
  return [dtype](const Trial& t) {
    return t.kind == TrialKind::kProduct && t.dtype == dtype && t.count == 1;
  };
}
bool computes(const Trial& t) {
  return t.kind == TrialKind::kProduct || t.kind == TrialKind::kAttention;
}
bool grouped(const Trial& t) { return t.kind == TrialKind::kProduct && t.count > 1; }

// Of these inner lengths at which half of the rate is reached, the one that float32 products fit
// best, and their rate.
void match_products(ClusterSpec& cluster, const Results& results, int ranks) {
  double least = std::numeric_limits<double>::infinity();
  ClusterSpec best = cluster;
  for (const double ramp : {1.0, 5.0, 10.0, 20.0, 40.0, 80.0, 150.0}) {
    cluster.inner_ramp = ramp;
    match(cluster, &ClusterSpec::peak_fp32, results, ranks);
    double spread = 0;
    for (const TrialResult* result : results) {
      const double guess = predicted_seconds(result->trial, cluster, ranks);
      spread += std::abs(std::log(guess / *result->seconds));
    }
    if (spread >= least) continue;
    least = spread;
    best = cluster;
  }
  cluster = best;
}

double products_seconds(const Job& job, const Trial& trial) {
  const auto [m, n, k, count] =
      std::array{static_cast<double>(trial.m), static_cast<double>(trial.n),
                 static_cast<double>(trial.k), static_cast<double>(trial.count)};
  return product_seconds(job, {m, n, k, count}, Precision::kJob) +
         product_seconds(job, {m, k, n, count}, Precision::kJob) +
         product_seconds(job, {n, k, m, count}, Precision::kJob);
}

// Of each of several ranks at once.
double step_seconds(ClusterSpec cluster) {
  cluster.solo_gain = 0;
  const StepTrial step = step_trial();
  const Job job{.model = step.model,
                .cluster = cluster,
                .seq = step.seq,
                .global_batch = step.sequences,
                .dtype = Dtype::kFloat32};
  return Estimator(job).estimate({.micro_batch = step.sequences}).step;
}

// What a whole step takes beyond its products and attention is all charged to moving memory: the
// kernels that do it reach less than a copy's bandwidth. By halving the interval, since a step
// hardly depends on it where it is large.
void match_step(ClusterSpec& cluster, double seconds) {
  double least = kLeastMemoryEfficiency, most = 1;
  for (int halving = 0; halving < 30; ++halving) {
    cluster.memory_efficiency = std::sqrt(least * most);
    (step_seconds(cluster) > seconds ? least : most) = cluster.memory_efficiency;
  }
}

// Operands of a step's products were often made just before; those of the trials are in no cache.
void quicken_products(ClusterSpec& cluster, double seconds) {
  const ClusterSpec cold = cluster;
  double least = 1, most = 2;
  for (int halving = 0; halving < 30; ++halving) {
    const double faster = std::sqrt(least * most);
    cluster.peak_fp32 = cold.peak_fp32 * faster;
    cluster.peak_bf16 = cold.peak_bf16 * faster;
    cluster.attention_efficiency = cold.attention_efficiency / faster;
    (step_seconds(cluster) > seconds ? least : most) = faster;
  }
}

void match_steps(ClusterSpec& cluster, const TrialResult& step) {
  match_step(cluster, *step.seconds);
  if (step_seconds(cluster) > *step.seconds) quicken_products(cluster, *step.seconds);
  cluster.solo_gain = std::clamp(step.solo_gain, 0.0, 0.5);
}

// `computing`: trials about as long as what ranks do between two meetings of a layer.
void match_jitter(ClusterSpec& cluster, const Results& computing, int ranks) {
  if (ranks < 2 || computing.empty()) return;
  std::vector<double> waiting;
  for (const TrialResult* result : computing) waiting.push_back(result->waiting);
  const double share = median(std::move(waiting));
  cluster.jitter = share / (1 - share) / slowest_of(ranks);
}

}  // namespace

double predicted_seconds(const Trial& trial, const ClusterSpec& cluster, int ranks) {
  Job job;
  job.cluster = cluster;
  job.dtype = trial.dtype;
  switch (trial.kind) {
    case TrialKind::kProduct:
      return products_seconds(job, trial);
    case TrialKind::kAttention:
      return attention_seconds(job, flops(trial));
    case TrialKind::kCopy:
      job.cluster.memory_efficiency = 1;
      return moving_seconds(job, static_cast<double>(trial.bytes), 1);
    case TrialKind::kStep:
      return step_seconds(cluster);
    case TrialKind::kCollective:
      return collective_seconds(cluster, trial.collective, {ranks, 1},
                                static_cast<double>(trial.bytes));
  }
  return 0;
}

ClusterSpec cluster_of(std::span<const TrialResult> results, const HostFacts& host) {
  throw_if_any(missing(results, host));
  ClusterSpec cluster = start(host);
  const auto fit = [&](double ClusterSpec::*rate, const std::function<bool(const Trial&)>& of) {
    match(cluster, rate, that(results, of), host.ranks.count);
  };
  fit(&ClusterSpec::memory_bandwidth, [](const Trial& t) { return t.kind == TrialKind::kCopy; });
  match_products(cluster, that(results, product_in(Dtype::kFloat32)), host.ranks.count);
  fit(&ClusterSpec::peak_bf16, product_in(Dtype::kBFloat16));
  bound_peak(cluster, &ClusterSpec::peak_bf16, that(results, product_in(Dtype::kBFloat16)));
  const Results attention =
      that(results, [](const Trial& t) { return t.kind == TrialKind::kAttention; });
  for (const TrialResult* result : attention) {  // the last is the longest
    const double rate = flops(result->trial) / *result->seconds;
    cluster.attention_efficiency = std::clamp(rate / cluster.peak_fp32, 0.001, 1.0);
  }
  for (const TrialResult* result :
       that(results, [](const Trial& t) { return t.kind == TrialKind::kStep; })) {
    match_steps(cluster, *result);
  }
  // After the steps, which say how fast operands really arrive.
  fit(&ClusterSpec::grouped_efficiency, grouped);
  cluster.grouped_efficiency = std::min(cluster.grouped_efficiency, 1.0);
  match_jitter(cluster, that(results, computes), host.ranks.count);
  std::vector<double> shortest;
  for (const TrialResult* result : that(results, small)) shortest.push_back(*result->seconds);
  if (!shortest.empty()) cluster.domain_latency = median(std::move(shortest));
  fit(&ClusterSpec::domain_bandwidth, large);
  cluster.network_bandwidth = cluster.domain_bandwidth;
  cluster.network_latency = cluster.domain_latency;
  return cluster;
}

std::string calibrated_toml(const ClusterSpec& cluster, const HostFacts& host,
                            std::span<const TrialResult> results) {
  const auto worked = std::ranges::count_if(
      results, [](const TrialResult& result) { return result.seconds.has_value(); });
  return fmt::format(
      "# Measured by `quatrain calibrate`: {} thread ranks of {} compute threads, {} of {} "
      "trials.\n"
      "# An accelerator is a rank of this host. overhead_bytes and fragmentation are assumed.\n{}",
      host.ranks.count, host.ranks.threads, worked, results.size(), to_toml(cluster));
}

}  // namespace quatrain
