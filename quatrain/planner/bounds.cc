// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/bounds.h"

#include <algorithm>

namespace quatrain {

double tokens_for_compute_bound(const Job& job) {
  const ClusterSpec& c = job.cluster;
  const double peak = job.fp8_products && c.peak_fp8 > 0 ? c.peak_fp8 : c.peak(job.dtype);
  const double axes = c.topology == Topology::kTorus ? c.torus_axes : 1.0;
  const double near = data_parallel_tokens(peak / c.domain_bandwidth, axes);
  if (job.gpus <= c.domain) return near;
  return std::max(near, data_parallel_tokens(peak / c.network_bandwidth, c.domain));
}

}  // namespace quatrain
