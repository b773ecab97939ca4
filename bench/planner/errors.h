// SPDX-License-Identifier: Apache-2.0
// How far predictions are off, table by table.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "bench/planner/fit.h"

namespace quatrain::bench {

// Of |predicted / measured - 1|; bias: the mean of predicted / measured - 1.
struct Errors {
  int n = 0;
  double mean = 0, median = 0, p90 = 0, worst = 0, bias = 0;
  std::string worst_label;
};
// `measured` and `predicted` in seconds or GiB; rows without a measured value are left out.
Errors time_errors(std::span<const Judged> judged);
Errors memory_errors(std::span<const Judged> judged);

struct Feasibility {
  int n = 0, right = 0;
  int false_fits = 0;  // said to fit, but failed
};
Feasibility feasibility(std::span<const Judged> judged);

// Of each contest, the planner's choice among the rows that were run.
struct Choices {
  int contests = 0;
  int within_5_percent = 0;  // of the best measured
  double median_loss = 0;    // of the chosen against the best
  double median_tau = 0;     // Kendall's rank correlation of the rows that ran
};
Choices choices(std::span<const Judged> judged);

// Kendall's tau-a.
double kendall_tau(std::span<const double> a, std::span<const double> b);

}  // namespace quatrain::bench
