// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/stragglers.h"

#include <cmath>

namespace quatrain {
namespace {

// Of the normal distribution, 0.5 <= p < 1, within 5e-4 (Abramowitz and Stegun, 26.2.23).
double quantile(double p) {
  const double t = std::sqrt(-2 * std::log(1 - p));
  return t - (2.515517 + t * (0.802853 + t * 0.010328)) /
                 (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
}

}  // namespace

double slowest_of(double n) { return n > 1 ? quantile((n - 0.375) / (n + 0.25)) : 0.0; }

double solo_factor(const Job& job) { return job.gpus == 1 ? 1 - job.cluster.solo_gain : 1.0; }

// A stage's ranks wait for each other; what stages wait for is the schedule's. While one stands
// still its neighbours are faster, so that its bubble is shorter than their work alone would make
// it.
void add_unevenness(const Job& job, const Geometry& g, StepParts& parts) {
  parts.compute *= solo_factor(job);
  parts.optimizer *= solo_factor(job);
  parts.bubble *= 1 - job.cluster.solo_gain;
  if (job.cluster.jitter > 0) {
    const double ranks = static_cast<double>(g.dp()) * g.cp * g.tp;
    parts.other += job.cluster.jitter * slowest_of(ranks) * parts.compute;
  }
}

}  // namespace quatrain
