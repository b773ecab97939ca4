// SPDX-License-Identifier: Apache-2.0
// What the data ranks of one pipeline rank send in a step, and what they do behind it.
#pragma once
#include "quatrain/planner/geometry.h"
#include "quatrain/planner/rank_work.h"

namespace quatrain {

// Seconds.
struct DataTimes {
  double hideable = 0;      // sent under computing
  double window = 0;        // of computing under which it may be
  double last = 0;          // of it, the last unit's: nothing is left to hide it under
  bool throughout = false;  // sent all through the step, and so while the rank stands still as well
  double theft = 0;         // what the hidden part costs, as a share of it
  double gather = 0;        // of updated weights, behind the optimizer
  double optimizer = 0;

  // By how much it ends behind computing of a rank that stands still for `idle` seconds. Longer
  // windows hide less than they are longer.
  double unhidden(double idle) const;
  double behind() const { return gather + optimizer; }
};
DataTimes data_times(const Job& job, const Geometry& geometry, const RankWork& work);

}  // namespace quatrain
