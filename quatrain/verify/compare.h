// SPDX-License-Identifier: Apache-2.0
// Two runs side by side: every parameter's weight or gradient by name, whole, and how far apart
// they are.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "quatrain/engine/zero_units.h"

namespace quatrain {

using NamedTensors = std::map<std::string, at::Tensor>;

// Copies of whole tensors, on every rank, whatever the geometry. Called by all.
NamedTensors whole_weights(ZeroUnits& units);
NamedTensors whole_grads(ZeroUnits& units);  // trainable parameters, after a step

struct TensorError {
  std::string name;
  double max_rel;  // infinite when one side lacks the tensor or the shapes differ
};
// Worst first. Relative error is max|a - b| / max|b| over the whole tensor, in float64. What is
// zero but for rounding on both sides (below 1e-12 of the largest element of all tensors: a key's
// bias under softmax) counts as equal; NaN and infinity never do.
std::vector<TensorError> compare(const NamedTensors& got, const NamedTensors& want);
double relative_error(double got, double want);
// Those that are zero but for rounding.
std::set<std::string> vanishing(const NamedTensors& tensors);

}  // namespace quatrain
