// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/goodput.h"

#include <algorithm>
#include <cmath>

namespace quatrain {

Goodput best_goodput(const Failures& f) {
  if (f.between <= 0) return {};
  // Half an interval is lost with each failure, a save with each interval.
  const double interval = std::sqrt(2 * f.save * f.between);
  const double saving = interval > 0 ? f.save / interval : 0.0;
  const double lost = saving + (interval / 2 + f.restart) / f.between;
  return {interval, std::clamp(1 - lost, 0.0, 1.0)};
}

double seconds_between_failures(const Job& job) {
  return job.cluster.failure_hours * 3600 / job.gpus;
}

}  // namespace quatrain
