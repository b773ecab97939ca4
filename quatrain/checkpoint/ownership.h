// SPDX-License-Identifier: Apache-2.0
// Who writes what. Of what several ranks hold, each element is written once: a shared box is cut by
// rows into parts of at least a MiB, which go to the holders with the least to write, the largest
// first. A function of the lists alone, so every rank finds the same.
//
// Boxes that overlap without being equal (copies of a norm whose tensor-parallel ranks cut their
// units elsewhere) are cut along each other's edges first.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "quatrain/checkpoint/piece.h"

namespace quatrain {

// A box that one rank writes, within the piece at `place` of its list.
struct OwnedBox {
  std::size_t place = 0;
  Box box;  // of the tensor; empty only for a tensor that is
  friend bool operator==(const OwnedBox&, const OwnedBox&) = default;
};

inline constexpr std::int64_t kPartBytes = 1 << 20;

// `held`: the list of each rank. By rank, what it writes, in the order of its list. BugError naming
// the tensor when its boxes leave a gap, or its shape or dtype differ between ranks.
std::vector<std::vector<OwnedBox>> assign_writers(std::span<const std::vector<PieceInfo>> held,
                                                  std::int64_t part_bytes = kPartBytes);

}  // namespace quatrain
