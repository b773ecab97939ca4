// SPDX-License-Identifier: Apache-2.0
// Volumes are those of rings (Thakur et al., doi:10.1177/1094342005051521): each of n ranks sends
// (n - 1) / n of the tensor, twice for an all_reduce. Latency is that of trees.
#include "quatrain/planner/collective.h"

#include <algorithm>
#include <cmath>

namespace quatrain {
namespace {

struct Levels {
  double inside;   // ranks of the group in one domain
  double outside;  // domains
};

Levels levels_of(const ClusterSpec& cluster, GroupShape group) {
  const double size = group.size;
  const double inside = std::clamp(std::floor(cluster.domain / group.stride), 1.0, size);
  return {inside, std::ceil(size / inside)};
}

// Axes of a torus that the ranks [0, end) reach along.
double axes_within(const ClusterSpec& cluster, double end) {
  const double side = std::pow(cluster.domain, 1.0 / cluster.torus_axes);
  const double axes = std::ceil(std::log2(std::max(end, 1.0)) / std::log2(side) - 1e-9);
  return std::clamp(axes, 0.0, cluster.torus_axes);
}

// Of one rank towards the others of its group in the domain.
double inside_bandwidth(const ClusterSpec& cluster, GroupShape group, double ranks) {
  const double full = cluster.domain_bandwidth * cluster.domain_efficiency;
  switch (cluster.topology) {
    case Topology::kSwitch:
      return full;
    case Topology::kMesh:
      return full * std::min(1.0, (ranks - 1) / std::max(1.0, cluster.domain - 1));
    case Topology::kTorus:
      return full * std::max(1.0, axes_within(cluster, ranks * group.stride) -
                                      std::floor(axes_within(cluster, group.stride)));
  }
  return full;
}

double outside_bandwidth(const ClusterSpec& cluster, double domains) {
  const double decay = 1.0 + cluster.network_decay * std::log2(std::max(domains / 2, 1.0));
  return cluster.network_bandwidth * cluster.network_efficiency / decay;
}

// Each rank sends (n - 1) / n of `bytes` through one level.
double one_way(double ranks, double bytes, double bandwidth, double latency) {
  if (ranks <= 1) return 0.0;
  return std::ceil(std::log2(ranks)) * latency + (ranks - 1) / ranks * bytes / bandwidth;
}

}  // namespace

bool inside_domain(const ClusterSpec& cluster, GroupShape group) {
  return levels_of(cluster, group).outside <= 1;
}

double collective_seconds(const ClusterSpec& cluster, CommKind kind, GroupShape group,
                          double bytes) {
  if (group.size <= 1 || bytes <= 0) return 0.0;
  const Levels levels = levels_of(cluster, group);
  const double near = inside_bandwidth(cluster, group, std::max(levels.inside, 2.0));
  const double far = outside_bandwidth(cluster, levels.outside);
  if (kind == CommKind::kSend) {
    return levels.inside > 1 ? cluster.domain_latency + bytes / near
                             : cluster.network_latency + bytes / far;
  }
  // In an all_to_all everything for other domains crosses the network; a reduction or gather sends
  // each domain's part once, split over its ranks.
  const double crossing = kind == CommKind::kAllToAll ? bytes : bytes / levels.inside;
  const double inside = one_way(levels.inside, bytes, near, cluster.domain_latency);
  const double outside = one_way(levels.outside, crossing, far, cluster.network_latency);
  if (kind != CommKind::kAllReduce) return inside + outside;
  return 2 * (inside / cluster.all_reduce_gain + outside);
}

}  // namespace quatrain
