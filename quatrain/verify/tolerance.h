// SPDX-License-Identifier: Apache-2.0
// How far apart two runs may be when both are right. Private to verify/.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "quatrain/verify/verify.h"

namespace quatrain {

// What one step left, whole.
struct StepValues {
  int step = 0;
  double loss = 0.0, norm = 0.0;
  NamedTensors grads, weights;
  std::map<std::string, double> router;  // "balance loss", "z-loss", "load"; none without experts
  std::vector<double> outputs;           // StepView's
};
// Of a step that should be `want`: of several copies of a tensor what is furthest from it. Without
// it, the first copy.
StepValues values_of(const StepView& view, const StepValues* want = nullptr);
std::vector<StepValues> all_values(const Side& side, int steps);  // by step, from 0

using Key = std::pair<Observed, std::string>;
using Errors = std::map<Key, double>;  // relative, of one step
Errors errors_of(const StepValues& got, const StepValues& want);

// kFloat64Tolerance, or what the reference's own rounding gives.
class Tolerances {
 public:
  Tolerances(const Question& question, const std::vector<StepValues>& reference);
  double of(int step, const Key& key) const;

 private:
  double least_;
  std::vector<Errors> distances_;  // by step: each tensor's own, or the median of its kind
};

// What the differences of a run's gradients may do to its weights: an update moves a weight by the
// difference times this much. AdamW divides by sqrt(v) + eps, so that a gradient near zero, whose
// sign may be rounding alone, moves its weight by up to two learning rates.
class UpdateGain {
 public:
  explicit UpdateGain(const Side& side) : side_(side) {}
  // The steps of a run, one after the other.
  void add(const StepValues& got, const StepValues& want);
  // Absolute, of one element of this parameter.
  double of(const std::string& name) const;

 private:
  double moved(double lr, double apart) const;
  const Side& side_;
  std::map<std::string, double> apart_;  // the gradients of a parameter, in any step so far
  std::map<std::string, double> moved_;
};

}  // namespace quatrain
