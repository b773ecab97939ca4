// SPDX-License-Identifier: Apache-2.0
// One cut of one dim: what boxes() and conversion() agree on.
#pragma once
#include <cstdint>
#include <vector>

#include "quatrain/mesh/placement.h"

namespace quatrain {

// Ranges of [0, size) that place `coord` of `degree` holds, in local order: one, zigzag two.
std::vector<Range> cut(std::int64_t size, const Shard& shard, int degree, int coord);

// What `shard` leaves of ranges laid end to end, those that touch joined; at least one, empty
// where nothing is left.
std::vector<Range> cut_ranges(const std::vector<Range>& ranges, const Shard& shard, int degree,
                              int coord);

}  // namespace quatrain
