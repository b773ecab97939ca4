// SPDX-License-Identifier: Apache-2.0
// What a wrong tensor looks like: a factor, a sum that is missing, shards that are wrong or in the
// wrong place, and along which axes of the mesh. Knows no axis: it sees the mesh's degrees and the
// boxes that the ranks hold.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "quatrain/mesh/mesh.h"
#include "quatrain/verify/pieces.h"

namespace quatrain {

struct Diagnosis {
  // Axes, or sets of axes that act as one, that the error is aligned with; several where equal
  // degrees leave it open, none where the pattern is no axis's.
  std::vector<AxisSet> axes = {};
  std::string hint = {};  // "1/tp of the gradient: a sum over tp is missing", "no pattern"
  std::optional<double> factor = {};  // got = factor x want, all over
  bool found() const { return !axes.empty() || factor; }
};

// The view of the ranks in which a tensor is shared: routed experts have their own.
enum class View : std::uint8_t { kDense, kExperts };
std::vector<Axis> axes_of(const Mesh& mesh, View view);  // slowest first

// What a tensor is called in hints ("gradient"), how it is shared, and what counts as equal,
// relative to the largest element.
struct Looked {
  std::string noun;
  double tolerance = 0.0;
  View view = View::kDense;
};
// Why `got`, of all ranks of `mesh`, is not `want` (whole).
Diagnosis diagnose(const Scattered& got, const at::Tensor& want, const Mesh& mesh,
                   const Looked& looked);

// The factor that got is of want all over, if there is one: what it leaves unexplained is a
// thousandth of their distance, or rounding (`tolerance`) that is a quarter of it at most.
std::optional<double> common_factor(const at::Tensor& got, const at::Tensor& want,
                                    double tolerance = 0.0);

}  // namespace quatrain
