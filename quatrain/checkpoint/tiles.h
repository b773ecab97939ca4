// SPDX-License-Identifier: Apache-2.0
// The grid on which a piece has its checksums. A tile is a box of the piece, not a run of bytes, so
// that a reader of some columns verifies what it read without the columns beside it. Tiles are
// counted row-major; the last of a dim may be smaller.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quatrain/checkpoint/checksum.h"
#include "quatrain/mesh/placement.h"

namespace quatrain {

struct TileGrid {
  std::vector<std::int64_t> shape;  // of the piece
  std::vector<std::int64_t> tile;   // of a tile; at least 1 in every dim

  std::vector<std::int64_t> counts() const;                       // tiles in each dim
  std::int64_t count() const;                                     // none for an empty piece
  std::int64_t place(std::span<const std::int64_t> index) const;  // among all
  Box box(std::span<const std::int64_t> index) const;
  Box box(std::int64_t place) const;
  // The smallest box of whole tiles around `box`, which is not empty.
  Box around(const Box& box) const;
};

// Tiles small enough that a cut elsewhere wastes little, large enough that checksums stay below
// half a percent of the bytes: up to 8 bands of columns by up to 64 of rows, 8 KiB to 4 MiB each.
TileGrid make_tiles(std::span<const std::int64_t> shape, std::int64_t itemsize);

// `box`, made of whole tiles, cut by rows into parts of whole tiles: of about `bytes`, or of
// one tile's rows.
std::vector<Box> row_parts(const TileGrid& grid, const Box& box, std::int64_t itemsize,
                           std::int64_t bytes);

struct TileSum {
  std::int64_t place;  // of the tile, among all of the grid
  Checksum sum;
};
// Of the tiles within `box`, which is made of whole tiles, in their order. `data`: the elements of
// `box`, row-major. A tile's checksum is that of its elements, row-major.
std::vector<TileSum> tile_sums(const TileGrid& grid, const Box& box, const std::byte* data,
                               std::int64_t itemsize, Hasher& hasher);

}  // namespace quatrain
