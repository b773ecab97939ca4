// SPDX-License-Identifier: Apache-2.0
// Pieces and boxes by hand, and that they tile the tensor whatever the cuts.
#include "quatrain/mesh/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "quatrain/base/error.h"
#include "quatrain/mesh/random_mesh.h"

namespace quatrain {
namespace {

using ::testing::ElementsAre;
using Shape = std::vector<std::int64_t>;

Mesh tp(int degree, int rank) { return Mesh({1, 1, 1, 1, degree, 1, 1, 1, 1}, rank); }

TEST(Piece, FirstOnesAreLonger) {
  EXPECT_EQ(piece(10, 4, 0), (Range{0, 3}));
  EXPECT_EQ(piece(10, 4, 1), (Range{3, 6}));
  EXPECT_EQ(piece(10, 4, 2), (Range{6, 8}));
  EXPECT_EQ(piece(10, 4, 3), (Range{8, 10}));
  EXPECT_EQ(piece(2, 4, 3), (Range{2, 2}));
  EXPECT_EQ(piece(0, 3, 1), (Range{0, 0}));
}

TEST(Piece, CutsFallOnTheGrain) {
  EXPECT_EQ(piece(40, 3, 0, 8), (Range{0, 16}));
  EXPECT_EQ(piece(40, 3, 1, 8), (Range{16, 32}));
  EXPECT_EQ(piece(40, 3, 2, 8), (Range{32, 40}));
  EXPECT_EQ(piece(10, 2, 1, 8), (Range{8, 10}));  // the last grain may be short
  EXPECT_THROW(piece(10, 2, 2), BugError);
  EXPECT_THROW(piece(10, 0, 0), BugError);
}

TEST(Boxes, RowsOverTp) {
  const ShardSpec spec{{{Axis::kTp, Shard{0}}}};
  const Shape global = {8, 3};
  EXPECT_THAT(spec.boxes(global, tp(4, 2)), ElementsAre(Box{{4, 0}, {2, 3}}));
  EXPECT_THAT(spec.local_shape(global, tp(4, 2)), ElementsAre(2, 3));
  EXPECT_THAT(ShardSpec{}.boxes(global, tp(4, 2)), ElementsAre(Box{{0, 0}, {8, 3}}));
}

TEST(Boxes, TwoKvHeadsOnEightRanks) {
  const ShardSpec spec{{{Axis::kTp, Shard{.dim = 0, .repeat = 4, .grain = 64}}}};
  const Shape global = {128, 512};
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_THAT(spec.boxes(global, tp(8, rank)),
                ElementsAre(Box{{rank < 4 ? 0 : 64, 0}, {64, 512}}));
  }
  EXPECT_THROW((ShardSpec{{{Axis::kTp, Shard{.dim = 0, .repeat = 3}}}}.boxes(global, tp(8, 0))),
               BugError);
}

TEST(Boxes, ZigzagBalancesTheTriangle) {
  const ShardSpec spec{{{Axis::kCp, Shard{.dim = 0, .layout = Layout::kZigzag}}}};
  const Shape global = {16};
  const Mesh mesh({1, 1, 1, 4, 1, 1, 1, 1, 1}, 0);
  EXPECT_THAT(spec.boxes(global, mesh), ElementsAre(Box{{0}, {2}}, Box{{14}, {2}}));
  EXPECT_THAT(spec.boxes(global, mesh.with_rank(1)), ElementsAre(Box{{2}, {2}}, Box{{12}, {2}}));
  EXPECT_THAT(spec.boxes(global, mesh.with_rank(3)), ElementsAre(Box{{6}, {4}}));
  EXPECT_THAT(spec.local_shape(global, mesh), ElementsAre(4));
}

TEST(Boxes, CutsOfOneDimNest) {
  const ShardSpec spec{{{Axis::kTp, Shard{0}}, {Axis::kDpShard, Shard{0}}}};
  const Shape global = {12};
  const Mesh mesh({1, 1, 3, 1, 2, 1, 1, 1, 1}, 3);  // dp_shard 1, tp 1
  EXPECT_THAT(spec.boxes(global, mesh), ElementsAre(Box{{8}, {2}}));
}

TEST(Boxes, EmptyPiecesKeepTheirShape) {
  const ShardSpec spec{{{Axis::kTp, Shard{0}}}};
  const Shape global = {2, 5};
  const std::vector<Box> boxes = spec.boxes(global, tp(4, 3));
  ASSERT_EQ(boxes.size(), 1U);
  EXPECT_EQ(boxes[0].numel(), 0);
  EXPECT_THAT(spec.local_shape(global, tp(4, 3)), ElementsAre(0, 5));
}

TEST(Boxes, NonsenseIsABug) {
  const Shape global = {4};
  EXPECT_THROW((ShardSpec{{{Axis::kTp, Shard{1}}}}.boxes(global, tp(2, 0))), BugError);
  EXPECT_THROW(
      (ShardSpec{{{Axis::kTp, Shard{0}}, {Axis::kTp, Replicate{}}}}.boxes(global, tp(2, 0))),
      BugError);
}

TEST(ShardSpec, AsText) {
  EXPECT_EQ(to_string(ShardSpec{}), "replicate");
  EXPECT_EQ(to_string(ShardSpec{{{{Axis::kDpShard, Axis::kCp}, Shard{.dim = 1, .repeat = 2}},
                                 {Axis::kTp, Partial{}}}}),
            "dp_shard x cp: shard dim 1 repeat 2, tp: partial sum");
}

// How often each element is held, over all ranks.
std::map<Shape, int> holders(const ShardSpec& spec, const Shape& global, const Mesh& mesh) {
  std::map<Shape, int> count;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    std::int64_t held = 0;
    for (const Box& box : spec.boxes(global, mesh.with_rank(rank))) {
      held += box.numel();
      for (std::int64_t i = 0; i < box.numel(); ++i) {
        ++count[{box.begin[0] + i / box.size[1], box.begin[1] + i % box.size[1]}];
      }
    }
    const Shape local = spec.local_shape(global, mesh.with_rank(rank));
    EXPECT_EQ(held, local[0] * local[1]);
  }
  return count;
}

TEST(BoxesProperty, TileTheTensor) {
  RandomMeshes random(4);
  for (int n = 0; n < 2000; ++n) {
    const Mesh mesh = random.mesh(12);
    const Shape global = {random.below(14), random.below(5)};
    ShardSpec spec;
    for (Axis axis : {Axis::kTp, Axis::kDpShard, Axis::kCp}) {
      Shard shard{.dim = random.below(2), .grain = 1 + random.below(3)};
      if (random.coin()) shard.layout = Layout::kZigzag;
      if (random.coin() && mesh.degree(axis) % 2 == 0) shard.repeat = 2;
      if (random.coin()) spec.on.push_back({axis, shard});
    }
    int copies = mesh.world_size();
    for (const ShardSpec::On& on : spec.on) {
      copies = copies / mesh.degree(on.axes) * std::get<Shard>(on.placement).repeat;
    }
    const std::map<Shape, int> count = holders(spec, global, mesh);
    ASSERT_EQ(static_cast<std::int64_t>(count.size()), global[0] * global[1]) << to_string(spec);
    for (const auto& [element, times] : count) {
      ASSERT_EQ(times, copies) << mesh.to_string() << " " << to_string(spec);
    }
  }
}

}  // namespace
}  // namespace quatrain
