// SPDX-License-Identifier: Apache-2.0
// Boxes and tiles against plain loops over elements.
#include "quatrain/checkpoint/box.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "quatrain/checkpoint/testing/draws.h"
#include "quatrain/checkpoint/tiles.h"

namespace quatrain {
namespace {

using testing::Draws;
using ::testing::HasSubstr;

std::vector<std::int64_t> random_shape(Draws& draws) {
  std::vector<std::int64_t> shape;
  for (std::int64_t dims = draws.between(0, 4); dims > 0; --dims)
    shape.push_back(draws.between(1, 9));
  return shape;
}

Box random_box(Draws& draws, const std::vector<std::int64_t>& shape) {
  Box box;
  for (const std::int64_t size : shape) {
    box.begin.push_back(draws.below(size));
    box.size.push_back(draws.between(1, size - box.begin.back()));
  }
  return box;
}

// Offset of every element of the box in a tensor of the shape, row-major.
std::vector<std::int64_t> offsets(const Box& box, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> offsets;
  for_each_index(box.size, [&](std::span<const std::int64_t> index) {
    std::int64_t offset = 0;
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      offset = offset * shape[dim] + box.begin[dim] + index[dim];
    }
    offsets.push_back(offset);
  });
  return offsets;
}

TEST(Box, RunsAreTheElementsInOrder) {
  Draws draws(1, "runs");
  for (int i = 0; i < 2000; ++i) {
    const std::vector<std::int64_t> shape = random_shape(draws);
    const Box box = random_box(draws, shape);
    std::vector<std::int64_t> got;
    const Runs runs = runs_of(box, shape);
    for (const std::int64_t begin : runs.begins) {
      for (std::int64_t j = 0; j < runs.length; ++j) got.push_back(begin + j);
    }
    ASSERT_EQ(got, offsets(box, shape)) << to_string(box);
  }
}

TEST(Box, RunsAreAsLongAsTheyCanBe) {
  EXPECT_EQ(runs_of({{0, 0}, {4, 6}}, std::vector<std::int64_t>{4, 6}).begins.size(), 1U);
  EXPECT_EQ(runs_of({{1, 0}, {2, 6}}, std::vector<std::int64_t>{4, 6}).length, 12);
  EXPECT_EQ(runs_of({{1, 2}, {2, 3}}, std::vector<std::int64_t>{4, 6}).length, 3);
  EXPECT_EQ(runs_of({{}, {}}, std::vector<std::int64_t>{}).length, 1);
}

TEST(Box, CopiesARegionBetweenAnyTwoBoxes) {
  Draws draws(2, "copies");
  for (int i = 0; i < 1000; ++i) {
    const std::vector<std::int64_t> shape = random_shape(draws);
    const Box from_box = random_box(draws, shape);
    const Box to_box = random_box(draws, shape);
    const auto region = intersection(from_box, to_box);
    if (!region) continue;
    std::vector<std::int32_t> from, to;
    for (const std::int64_t offset : offsets(from_box, shape)) {
      from.push_back(static_cast<std::int32_t>(offset));
    }
    to.assign(static_cast<std::size_t>(to_box.numel()), -1);
    copy_region({reinterpret_cast<std::byte*>(to.data()), &to_box},
                {reinterpret_cast<std::byte*>(from.data()), &from_box}, *region, 4);
    const std::vector<std::int64_t> copied = offsets(*region, shape);
    const std::vector<std::int64_t> places = offsets(to_box, shape);
    for (std::size_t j = 0; j < to.size(); ++j) {
      const bool inside = std::find(copied.begin(), copied.end(), places[j]) != copied.end();
      ASSERT_EQ(to[j], inside ? places[j] : -1);
    }
  }
}

TEST(Box, SaysWhatCoversATensorAndWhatDoesNot) {
  const std::vector<std::int64_t> shape{4, 6};
  const Box left{{0, 0}, {4, 3}}, right{{0, 3}, {4, 3}}, top{{0, 0}, {2, 6}};
  EXPECT_EQ(coverage_fault(std::vector{left, right}, shape), "");
  EXPECT_EQ(coverage_fault(std::vector{right, left}, shape), "");
  EXPECT_EQ(coverage_fault(std::vector{left}, shape), "12 of 24 elements are covered");
  EXPECT_THAT(coverage_fault(std::vector{left, right, top}, shape), HasSubstr("overlap"));
  EXPECT_THAT(coverage_fault(std::vector{Box{{0, 4}, {4, 3}}}, shape), HasSubstr("outside"));
  EXPECT_EQ(coverage_fault(std::vector{Box{{}, {}}}, std::vector<std::int64_t>{}), "");
  EXPECT_THAT(coverage_fault(std::vector{Box{{}, {}}, Box{{}, {}}}, std::vector<std::int64_t>{}),
              HasSubstr("overlap"));
}

TEST(Tiles, CutEveryPieceIntoTilesOfAFairSize) {
  Draws draws(3, "tiles");
  for (int i = 0; i < 500; ++i) {
    std::vector<std::int64_t> shape;
    for (std::int64_t dims = draws.between(0, 3); dims > 0; --dims) {
      shape.push_back(draws.between(1, 2000));
    }
    const TileGrid grid = make_tiles(shape, 4);
    const std::int64_t bytes = elements(shape) * 4;
    EXPECT_LE(elements(grid.tile) * 4, 4 << 20);
    EXPECT_LE(grid.count() * static_cast<std::int64_t>(kChecksumDigits),
              std::max<std::int64_t>(bytes / 100, kChecksumDigits));
  }
}

TEST(Tiles, FallOnTheCutsOfTensorParallelism) {
  for (const std::int64_t columns : {768, 3072, 4096, 11008}) {
    const TileGrid grid = make_tiles(std::vector<std::int64_t>{columns, columns}, 4);
    EXPECT_EQ(grid.tile[1] * 8, columns);
  }
}

TEST(Tiles, AroundABoxAreTheTilesThatItMeets) {
  Draws draws(4, "around");
  for (int i = 0; i < 500; ++i) {
    const std::vector<std::int64_t> shape = random_shape(draws);
    TileGrid grid{shape, {}};
    for (const std::int64_t size : shape) grid.tile.push_back(draws.between(1, size));
    const Box box = random_box(draws, shape);
    const Box around = grid.around(box);
    std::int64_t met = 0;
    for (std::int64_t place = 0; place < grid.count(); ++place) {
      const Box tile = grid.box(place);
      EXPECT_EQ(intersection(tile, box).has_value(), intersection(tile, around).has_value());
      if (intersection(tile, box)) met += tile.numel();
    }
    EXPECT_EQ(met, around.numel());
    EXPECT_TRUE(contains(around, box));
  }
}

TEST(Tiles, HaveTheChecksumsOfTheirElements) {
  std::vector<std::byte> data(6 * 10);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 7);
  const TileGrid grid{{6, 10}, {4, 5}};
  Hasher hasher;
  const std::vector<TileSum> sums = tile_sums(grid, whole_box(grid.shape), data.data(), 1, hasher);
  ASSERT_EQ(sums.size(), 4U);
  for (const TileSum& sum : sums) {
    std::vector<std::byte> tile;
    for (const std::int64_t offset : offsets(grid.box(sum.place), grid.shape)) {
      tile.push_back(data[static_cast<std::size_t>(offset)]);
    }
    EXPECT_EQ(sum.sum, checksum(tile));
  }
}

TEST(Checksum, IsXxhashsDigest) {
  std::string text;
  append_hex(text, checksum(std::string_view("")));
  EXPECT_EQ(text, "99aa06d3014798d86001c324468d497f");  // of xxhsum -H2
  EXPECT_EQ(checksum_from_hex(text), checksum(std::string_view("")));
  EXPECT_EQ(checksum_from_hex("99AA06D3014798D86001C324468D497F"), std::nullopt);
  EXPECT_EQ(checksum_from_hex("99aa"), std::nullopt);
}

}  // namespace
}  // namespace quatrain
