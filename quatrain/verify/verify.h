// SPDX-License-Identifier: Apache-2.0
// Does one geometry compute what another does? Both run the same steps from the same seed on the
// same global batches; every loss, gradient norm, gradient and weight is compared by name, and the
// first difference is looked at: which axis of the mesh it is aligned with.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/verify/run.h"

namespace quatrain {

enum class Observed : std::uint8_t { kGradient, kLoss, kGradNorm, kWeight, kRouter };
std::string_view name(Observed observed);  // "gradient", "loss", "grad_norm", "weight", "router"

struct Question {
  Side subject;
  Side reference;
  // The reference in float64, where both compute in less: how far rounding alone moves each tensor.
  std::optional<Side> exact = {};
  int steps = 3;
  // The subject with one axis of degree 1; nothing where that cannot be run. Asked only about a
  // difference that has no pattern: the axes without which it vanishes are the ones to look at.
  std::function<std::optional<Side>(Axis axis)> without = nullptr;
};

// The largest error of a tensor over the steps, in units of what is allowed.
struct VerifyRow {
  Observed kind;
  std::string tensor;  // "loss" and "grad_norm" have no other name; of routers "balance loss", ...
  int step = 0;        // where it is worst; 0: before the first
  double max_rel = 0.0;
  double tolerance = 0.0;
  bool differs() const { return !(max_rel <= tolerance); }
};

// The first step that differs and in it the first gradient in the order of the forward pass; where
// no gradient does, the loss, the norm, or the first weight. Ahead of all of them what routers saw,
// where the loss is right.
struct FirstDifference {
  VerifyRow row;
  std::vector<AxisSet> axes;  // as in Diagnosis
  std::string hint;
};

struct VerifyReport {
  int steps = 0;
  double tolerance = 0.0;  // of the worst row
  double max_rel = 0.0;    // of the worst row
  std::optional<FirstDifference> first;
  std::vector<VerifyRow> rows;  // worst first
  bool equal() const { return !first; }
};

// In float64 everything agrees to kFloat64Tolerance. Below, a tensor may differ by kRoundings times
// the distance that rounding itself moves the reference's from `exact`; that is taken to be at
// least the median of its kind and 4 units of rounding: a sum in another order rounds otherwise,
// and no more. Weights may differ by what their gradients' differences do to them beside.
inline constexpr double kFloat64Tolerance = 1e-12;
inline constexpr double kRoundings = 5.0;
VerifyReport verify(const Question& question);

}  // namespace quatrain
