// SPDX-License-Identifier: Apache-2.0
// Reductions of several ranks' numbers on one processor, in the order of ranks: the one place where
// sums over ranks are taken, so that every backend gives the same bits.
#pragma once
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "quatrain/mesh/placement.h"

namespace quatrain {

// float64, float32, bfloat16, int64, int32, uint8: what communicators carry.
bool can_reduce(at::ScalarType dtype);

// outs[k][i] = sources[0][i] op sources[1][i] op ..., for every k and every i < count; left to
// right. Sums are taken in wide(dtype) (bfloat16: float32; integers in their own type, wrapping)
// and rounded once. NaN wins max and min. An element's bits depend on nothing but its sources, so
// any cut into chunks gives the same. An out may be a source; other overlap is not allowed.
// REQUIRES: at least one source; each pointer aligned for dtype, or count = 0.
// BugError unless can_reduce(dtype).
void reduce_in_order(std::span<std::byte* const> outs, std::span<const std::byte* const> sources,
                     std::int64_t count, at::ScalarType dtype, ReduceOp op);

}  // namespace quatrain
