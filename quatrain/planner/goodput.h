// SPDX-License-Identifier: Apache-2.0
// What failures leave of a job's time (Young, doi:10.1145/361147.361115; Daly,
// doi:10.1016/j.future.2004.11.016).
#pragma once
#include "quatrain/planner/geometry.h"

namespace quatrain {

struct Failures {
  double between = 0;  // seconds from one failure of the job to the next, in the mean
  double save = 0;     // seconds that a checkpoint holds training up
  double restart = 0;  // seconds from a failure until training goes on
};
struct Goodput {
  double interval = 0;  // seconds between checkpoints, the best ones
  double share = 1;     // of time that is not lost
};
Goodput best_goodput(const Failures& failures);

// Of all of a job's accelerators, by the cluster's hours between failures of one; 0: not known.
double seconds_between_failures(const Job& job);

}  // namespace quatrain
