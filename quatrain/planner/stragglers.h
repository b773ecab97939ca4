// SPDX-License-Identifier: Apache-2.0
// Ranks with equal work do not take equally long, and where they meet all wait for the slowest.
#pragma once
#include "quatrain/planner/estimate.h"

namespace quatrain {

// The largest of n draws of a normal distribution, in the mean, in standard deviations: its
// quantile (n - 3/8) / (n + 1/4) (Blom, Statistical Estimates and Transformed Beta-Variables,
// 1958). 0 where n is 1.
double slowest_of(double n);

// Of a step whose parts are what one rank does and stands still: adds what it waits for slower ones
// (the cluster's `jitter`), and takes off what it gains while others stand still (`solo_gain`).
void add_unevenness(const Job& job, const Geometry& geometry, StepParts& parts);

// Of a rank's time, the share that a job's work takes: less than 1 where it has its host alone.
double solo_factor(const Job& job);

}  // namespace quatrain
