// SPDX-License-Identifier: Apache-2.0
// Elements that one rank of n sends, by the ring convention: what conversion() prices, the counting
// communicator counts and cost/ predicts. Pieces are padded to the largest.
#pragma once
#include <cstdint>

namespace quatrain {

// all_gather and reduce_scatter of pieces of at most `largest` elements.
constexpr std::int64_t gather_wire(int n, std::int64_t largest) { return (n - 1) * largest; }

// all_reduce: a reduce_scatter and an all_gather of even pieces.
constexpr std::int64_t all_reduce_wire(int n, std::int64_t elements) {
  return 2 * gather_wire(n, (elements + n - 1) / n);
}

}  // namespace quatrain
