// SPDX-License-Identifier: Apache-2.0
// Where a unit's parameters, laid end to end, are cut for ZeRO: on rows, so that every piece of
// every parameter is a box, and inside vectors on multiples of 16, so that kernels see whole lanes.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace quatrain {

// Cuts [0, total elements] into `pieces` runs: returns pieces + 1 rising offsets, the first 0 and
// the last the total. Each is the allowed place nearest to its even share; pieces may be empty.
std::vector<std::int64_t> row_cuts(std::span<const std::vector<std::int64_t>> shapes, int pieces);

// The same cuts in a run that leaves out parameters that are not `kept` (frozen ones have no
// gradient).
std::vector<std::int64_t> cuts_of_kept(std::span<const std::vector<std::int64_t>> shapes,
                                       const std::vector<bool>& kept,
                                       std::span<const std::int64_t> cuts);

// Elements between neighbouring cuts.
std::vector<std::int64_t> sizes_between(std::span<const std::int64_t> cuts);

}  // namespace quatrain
