// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/op_time.h"

#include <algorithm>
#include <cmath>

namespace quatrain {
namespace {

// Of a last wave that is not full, the power that is lost: libraries choose smaller tiles for it or
// cut it along the inner length. Of 697 products on A100 and B200 in SimuMax's system files.
constexpr double kWaveLoss = 0.25;
constexpr double kShortestPiece = 512;      // of an inner length that idle units share
constexpr double kBackwardAttention = 0.8;  // of the forward's rate; assumed
constexpr double kCastBytes = 3;            // an element read in 16 bit and written in 8

// Share of the best shape's rate.
double shape_rate(const ClusterSpec& cluster, const Product& p) {
  const auto padded = [&](double size) { return std::ceil(size / cluster.tile) * cluster.tile; };
  const double tiles = padded(p.m) * padded(p.n) / (cluster.tile * cluster.tile) * p.count;
  const double pieces =
      std::clamp(cluster.compute_units / tiles, 1.0, std::max(1.0, p.k / kShortestPiece));
  const double waves = tiles * pieces / cluster.compute_units;
  const double busy = waves <= 1 ? waves : std::pow(waves / std::ceil(waves), kWaveLoss);
  const double filled = p.m * p.n / (padded(p.m) * padded(p.n)) * busy;
  return filled * p.k / (p.k + cluster.inner_ramp) *
         (p.count > 1 ? cluster.grouped_efficiency : 1.0);
}

}  // namespace

double product_seconds(const Job& job, const Product& p, Precision precision, bool gradient) {
  const ClusterSpec& c = job.cluster;
  const bool fp8 = precision == Precision::kFp8 && c.peak_fp8 > 0;
  const double best =
      fp8 ? c.peak_fp8 * c.gemm_efficiency_fp8 : c.peak(job.dtype) * c.gemm_efficiency;
  const auto element = static_cast<double>(size_of(job.dtype));
  const double operands = p.count * (p.m * p.k + p.n * p.k), result = p.count * p.m * p.n;
  const double written = gradient ? 2.0 * static_cast<double>(size_of(wide(job.dtype))) : element;
  const double bytes = (fp8 ? 1.0 : element) * operands + written * result;
  const double bandwidth = c.memory_bandwidth * c.memory_efficiency;
  const double computing = p.flops() / (c.sustained * best * shape_rate(c, p));
  const double moving = bytes / bandwidth;
  const double product = p.count > 1 ? computing + moving : std::max(computing, moving);
  const double casts = fp8 ? kCastBytes * operands / bandwidth : 0.0;
  return (product + casts) / job.efficiency + c.launch_seconds;
}

double attention_seconds(const Job& job, double flops) {
  const ClusterSpec& c = job.cluster;
  return flops / (c.peak(job.dtype) * c.attention_efficiency * job.efficiency);
}

double attention_backward_seconds(const Job& job, double flops) {
  return attention_seconds(job, flops) / kBackwardAttention;
}

double moving_seconds(const Job& job, double bytes, double kernels) {
  const ClusterSpec& c = job.cluster;
  return bytes / (c.memory_bandwidth * c.memory_efficiency * job.efficiency) +
         kernels * c.launch_seconds;
}

}  // namespace quatrain
