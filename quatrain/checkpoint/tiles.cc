// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/tiles.h"

#include <algorithm>
#include <bit>

#include "quatrain/base/check.h"
#include "quatrain/checkpoint/box.h"
#include "quatrain/mesh/shape.h"

namespace quatrain {
namespace {

constexpr std::int64_t kLeastTileBytes = 8 << 10;
constexpr std::int64_t kMostTileBytes = 4 << 20;
constexpr std::int64_t kMostTiles = 512;
constexpr std::int64_t kMostBands = 8;         // of columns
constexpr std::int64_t kLeastBandBytes = 256;  // of a row within a band

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Bands of equal width: tensor-parallel cuts of a matrix by columns mostly fall between them.
std::int64_t bands_of(std::int64_t columns, std::int64_t itemsize) {
  std::int64_t bands = kMostBands;
  while (bands > 1 && (columns % bands != 0 || columns / bands * itemsize < kLeastBandBytes)) {
    bands /= 2;
  }
  return bands;
}

}  // namespace

std::vector<std::int64_t> TileGrid::counts() const {
  std::vector<std::int64_t> counts;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    counts.push_back(divide_up(shape[dim], tile[dim]));
  }
  return counts;
}

std::int64_t TileGrid::count() const { return elements(counts()); }

std::int64_t TileGrid::place(std::span<const std::int64_t> index) const {
  std::int64_t place = 0;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    place = place * divide_up(shape[dim], tile[dim]) + index[dim];
  }
  return place;
}

Box TileGrid::box(std::span<const std::int64_t> index) const {
  Box box;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    box.begin.push_back(index[dim] * tile[dim]);
    box.size.push_back(std::min(tile[dim], shape[dim] - box.begin[dim]));
  }
  return box;
}

Box TileGrid::box(std::int64_t place) const {
  std::vector<std::int64_t> index(shape.size());
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    const std::int64_t count = divide_up(shape[dim], tile[dim]);
    index[dim] = place % count;
    place /= count;
  }
  return box(index);
}

Box TileGrid::around(const Box& box) const {
  Box around;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    const std::int64_t begin = box.begin[dim] / tile[dim] * tile[dim];
    const std::int64_t end = divide_up(box.begin[dim] + box.size[dim], tile[dim]) * tile[dim];
    around.begin.push_back(begin);
    around.size.push_back(std::min(end, shape[dim]) - begin);
  }
  return around;
}

TileGrid make_tiles(std::span<const std::int64_t> shape, std::int64_t itemsize) {
  TileGrid grid{{shape.begin(), shape.end()}, {}};
  for (const std::int64_t size : shape) grid.tile.push_back(std::max<std::int64_t>(size, 1));
  if (shape.empty()) return grid;
  const std::int64_t bytes = elements(grid.tile) * itemsize;
  const std::int64_t tiles = std::clamp<std::int64_t>(bytes / kLeastTileBytes, 1, kMostTiles);
  std::int64_t bands = shape.size() > 1 ? bands_of(grid.tile.back(), itemsize) : 1;
  while (bands > tiles) bands /= 2;
  grid.tile.back() /= bands;
  // A power of two of them, as degrees mostly are.
  const auto blocks = std::bit_floor(static_cast<std::uint64_t>(tiles / bands));
  grid.tile[0] = divide_up(grid.tile[0], static_cast<std::int64_t>(blocks));
  for (std::int64_t& size : grid.tile) {
    while (size > 1 && elements(grid.tile) * itemsize > kMostTileBytes) size = divide_up(size, 2);
  }
  return grid;
}

std::vector<Box> row_parts(const TileGrid& grid, const Box& box, std::int64_t itemsize,
                           std::int64_t bytes) {
  if (box.numel() == 0) return {};
  if (box.size.empty()) return {box};
  const std::int64_t tile_bytes = box.numel() / box.size[0] * grid.tile[0] * itemsize;
  const std::int64_t rows = std::max<std::int64_t>(bytes / tile_bytes, 1) * grid.tile[0];
  std::vector<Box> parts;
  for (std::int64_t done = 0; done < box.size[0]; done += rows) {
    Box& part = parts.emplace_back(box);
    part.begin[0] += done;
    part.size[0] = std::min(rows, box.size[0] - done);
  }
  return parts;
}

std::vector<TileSum> tile_sums(const TileGrid& grid, const Box& box, const std::byte* data,
                               std::int64_t itemsize, Hasher& hasher) {
  std::vector<TileSum> sums;
  std::vector<std::int64_t> first, counts;
  for (std::size_t dim = 0; dim < grid.shape.size(); ++dim) {
    CHECK(box.begin[dim] % grid.tile[dim] == 0, "a box that cuts tiles");
    first.push_back(box.begin[dim] / grid.tile[dim]);
    counts.push_back(divide_up(box.size[dim], grid.tile[dim]));
  }
  std::vector<std::int64_t> place(first.size());
  for_each_index(counts, [&](std::span<const std::int64_t> index) {
    for (std::size_t dim = 0; dim < place.size(); ++dim) place[dim] = first[dim] + index[dim];
    const Runs runs = runs_of(relative_to(grid.box(place), box.begin), box.size);
    hasher.reset();
    for (const std::int64_t begin : runs.begins) {
      hasher.add({data + begin * itemsize, static_cast<std::size_t>(runs.length * itemsize)});
    }
    sums.push_back({grid.place(place), hasher.sum()});
  });
  return sums;
}

}  // namespace quatrain
