// SPDX-License-Identifier: Apache-2.0
// Arithmetic of tensor shapes.
#pragma once
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>

namespace quatrain {

// Elements of a tensor of this shape; 1 for a scalar's.
inline std::int64_t elements(std::span<const std::int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

}  // namespace quatrain
