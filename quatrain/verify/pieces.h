// SPDX-License-Identifier: Apache-2.0
// Parameters as the ranks hold them: each rank's box of each tensor, by name. Nothing here knows an
// axis: the boxes follow from a parameter's placement and from the rows that ZeRO gave the rank.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "quatrain/engine/zero_units.h"
#include "quatrain/nn/whole.h"
#include "quatrain/verify/compare.h"

namespace quatrain {

struct Piece {
  int rank = 0;       // of the world
  Box box;            // of the global tensor
  at::Tensor values;  // of the box's sizes; a view of what the rank holds
};
struct Scattered {
  std::vector<std::int64_t> shape;  // global
  std::vector<Piece> pieces;        // by rank; ranks may hold the same box, or none
};
using ScatteredTensors = std::map<std::string, Scattered>;

// What the rank at mesh.rank() owns, as views: valid until its next step. Gradients are those of
// trainable parameters, after a step.
ScatteredTensors owned_weights(ZeroUnits& units, const Mesh& mesh);
ScatteredTensors owned_grads(ZeroUnits& units, const Mesh& mesh);

// Adds the pieces of another rank.
void merge(ScatteredTensors& into, const ScatteredTensors& more);

// A copy of the whole tensor: of several copies the first, NaN where no rank holds anything.
at::Tensor assemble(const Scattered& tensor);
NamedTensors assemble(const ScatteredTensors& tensors);
// Where copies differ, of each element the one that is furthest from `want`: what is wrong on any
// rank is wrong in the whole. Tensors that `want` lacks, or has in another shape, as above.
NamedTensors assemble(const ScatteredTensors& tensors, const NamedTensors& want);

}  // namespace quatrain
