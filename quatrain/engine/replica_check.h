// SPDX-License-Identifier: Apache-2.0
// The same piece of a tensor is the same bits wherever it is held: on data-parallel replicas, on
// tensor-parallel ranks that keep a whole copy, on any axis to come. Hashes are compared, so that a
// drift is found when it begins and not in the loss (cases 011, 019).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quatrain/comm/communicator.h"
#include "quatrain/engine/zero_units.h"
#include "quatrain/mesh/mesh.h"
#include "quatrain/optim/optimizer.h"

namespace quatrain {

// A rank's part of one tensor: which elements, as a number that is equal for equal ones, and their
// bits. 0, 0 where it holds none.
struct HeldPart {
  std::int64_t elements = 0;
  std::int64_t bits = 0;
};

// Ranks that hold other bits than most holders of the same elements, or than the first where there
// is no majority.
struct Drift {
  std::size_t tensor;
  std::vector<int> ranks;
  int against;  // a holder that they differ from
};
// `held`: rank after rank, `tensors` parts each.
std::vector<Drift> find_drifts(std::span<const HeldPart> held, std::size_t tensors);

// Compares values and optimizer states over all ranks of `world`, which all call it, between steps.
// Throws BugError that names the first tensors that drifted, the ranks, and the axis along which
// they differ from one that agrees with the others.
void check_replicas(ZeroUnits& units, Optimizer& optimizer, const Mesh& mesh, Communicator& world);

}  // namespace quatrain
