// SPDX-License-Identifier: Apache-2.0
// Which collectives a layout change costs, how many bytes they send, and that running the list on
// every rank of random meshes gives the wanted layout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "quatrain/base/error.h"
#include "quatrain/mesh/placement.h"
#include "quatrain/mesh/random_mesh.h"

namespace quatrain {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using Shape = std::vector<std::int64_t>;
using Kind = CollectiveKind;

constexpr Bytes kFloat{4};

ShardSpec on(AxisSet axes, Placement placement) { return {{{axes, placement}}}; }
Mesh tp(int degree) { return Mesh({1, 1, 1, 1, degree, 1, 1, 1, 1}, 0); }

std::vector<Collective> over_tp(int n, Placement from, Placement to, const Shape& shape) {
  return conversion(on(Axis::kTp, from), on(Axis::kTp, to), shape, kFloat, tp(n));
}

TEST(Conversion, EqualLayoutsCostNothing) {
  EXPECT_THAT(over_tp(4, Shard{0}, Shard{0}, {8, 8}), IsEmpty());
  EXPECT_THAT(over_tp(4, Partial{}, Partial{}, {8, 8}), IsEmpty());
  EXPECT_THAT(over_tp(4, Replicate{}, Replicate{}, {8, 8}), IsEmpty());
  EXPECT_THAT(over_tp(1, Partial{}, Shard{0}, {8, 8}), IsEmpty());
}

TEST(Conversion, PartialToReplicateIsAllReduce) {  // 2 (n-1)/n S
  EXPECT_THAT(over_tp(4, Partial{}, Replicate{}, {8, 16}),
              ElementsAre(Collective{Kind::kAllReduce, Axis::kTp, -1, Bytes{2 * 3 * 512 / 4}}));
  EXPECT_THAT(over_tp(4, Partial{ReduceOp::kMax}, Replicate{}, {3}),  // ceil(3 / 4) elements
              ElementsAre(Collective{Kind::kAllReduce, Axis::kTp, -1, Bytes{2 * 3 * 4}, -1,
                                     ReduceOp::kMax}));
}

TEST(Conversion, ShardToReplicateIsAllGather) {  // (n-1)/n S
  EXPECT_THAT(over_tp(4, Shard{1}, Replicate{}, {8, 16}),
              ElementsAre(Collective{Kind::kAllGather, Axis::kTp, 1, Bytes{3 * 512 / 4}}));
  EXPECT_THAT(over_tp(4, Shard{0}, Replicate{}, {10}),  // 3 3 2 2, padded to 3
              ElementsAre(Collective{Kind::kAllGather, Axis::kTp, 0, Bytes{3 * 3 * 4}}));
}

TEST(Conversion, PartialToShardIsReduceScatter) {  // (n-1)/n S
  EXPECT_THAT(over_tp(4, Partial{}, Shard{0}, {8, 16}),
              ElementsAre(Collective{Kind::kReduceScatter, Axis::kTp, 0, Bytes{3 * 512 / 4}}));
  EXPECT_THAT(over_tp(4, Partial{}, Shard{0}, {10}),
              ElementsAre(Collective{Kind::kReduceScatter, Axis::kTp, 0, Bytes{3 * 3 * 4}}));
}

TEST(Conversion, ShardToShardIsAllToAll) {  // (n-1)/n of what a rank holds
  EXPECT_THAT(over_tp(4, Shard{0}, Shard{1}, {8, 16}),
              ElementsAre(Collective{Kind::kAllToAll, Axis::kTp, 0, Bytes{512 / 4 * 3 / 4}, 1}));
  // 5 rows as 3 + 2, 3 columns as 2 + 1: rank 0 sends 3 x 1, rank 1 sends 2 x 2.
  EXPECT_THAT(over_tp(2, Shard{0}, Shard{1}, {5, 3}),
              ElementsAre(Collective{Kind::kAllToAll, Axis::kTp, 0, Bytes{4 * 4}, 1}));
}

TEST(Conversion, ReplicateToShardIsASlice) {
  EXPECT_THAT(over_tp(4, Replicate{}, Shard{0}, {8, 16}),
              ElementsAre(Collective{Kind::kSlice, Axis::kTp, 0, Bytes{0}}));
}

TEST(Conversion, ReplicateToPartialIsABug) {
  EXPECT_THAT([] { over_tp(2, Replicate{}, Partial{}, {8}); },
              ThrowsMessage<BugError>(
                  HasSubstr("no collectives turn \"tp: replicate\" into \"tp: partial sum\"")));
  EXPECT_THROW(over_tp(2, Partial{}, Partial{ReduceOp::kMax}, {8}), BugError);
  EXPECT_THROW(over_tp(2, Shard{0}, Partial{}, {8}), BugError);
}

TEST(Conversion, SeveralAxesAreOneGroup) {
  const Mesh mesh({1, 1, 4, 2, 1, 1, 1, 1, 1}, 0);
  const AxisSet both{Axis::kDpShard, Axis::kCp};
  const Shape shape = {16};
  EXPECT_THAT(conversion(on(both, Shard{0}), {}, shape, kFloat, mesh),
              ElementsAre(Collective{Kind::kAllGather, both, 0, Bytes{7 * 2 * 4}}));
  // Part of a sum may scatter while the rest is reduced, on the smaller piece.
  EXPECT_THAT(conversion(on(both, Partial{}), on(Axis::kDpShard, Shard{0}), shape, kFloat, mesh),
              ElementsAre(Collective{Kind::kReduceScatter, Axis::kDpShard, 0, Bytes{3 * 4 * 4}},
                          Collective{Kind::kAllReduce, Axis::kCp, -1, Bytes{2 * 2 * 4}}));
}

TEST(Conversion, SlicesComeFirstAndGathersLast) {
  const Mesh mesh({1, 1, 2, 1, 4, 1, 1, 1, 1}, 0);
  const ShardSpec from = {{{Axis::kTp, Partial{}}}};
  const ShardSpec to = {{{Axis::kDpShard, Shard{0}}}};
  const Shape shape = {8, 4};
  EXPECT_THAT(conversion(from, to, shape, kFloat, mesh),
              ElementsAre(Collective{Kind::kSlice, Axis::kDpShard, 0, Bytes{0}},
                          Collective{Kind::kAllReduce, Axis::kTp, -1, Bytes{2 * 3 * 4 * 4}}));
}

TEST(Conversion, NestedCutsUnwindFromTheInside) {
  const Mesh mesh({1, 1, 2, 1, 2, 1, 1, 1, 1}, 0);
  const ShardSpec from = {{{Axis::kTp, Shard{0}}, {Axis::kDpShard, Shard{0}}}};
  const Shape shape = {8};
  EXPECT_THAT(conversion(from, {}, shape, kFloat, mesh),
              ElementsAre(Collective{Kind::kAllGather, Axis::kDpShard, 0, Bytes{2 * 4}},
                          Collective{Kind::kAllGather, Axis::kTp, 0, Bytes{4 * 4}}));
  EXPECT_THAT(conversion(from, on(Axis::kTp, Shard{0}), shape, kFloat, mesh),
              ElementsAre(Collective{Kind::kAllGather, Axis::kDpShard, 0, Bytes{2 * 4}}));
}

TEST(Conversion, RepeatedPiecesReduceThenSlice) {
  EXPECT_THAT(over_tp(8, Partial{}, Shard{.dim = 0, .repeat = 4}, {16}),
              ElementsAre(Collective{Kind::kAllReduce, Axis::kTp, -1, Bytes{2 * 7 * 2 * 4}},
                          Collective{Kind::kSlice, Axis::kTp, 0, Bytes{0}}));
}

TEST(Conversion, AxesOfDegreeOneDoNotMatter) {
  const Mesh mesh({1, 1, 4, 1, 1, 1, 1, 1, 1}, 0);
  const AxisSet both{Axis::kDpShard, Axis::kCp};
  const Shape shape = {16};
  EXPECT_THAT(conversion(on(both, Shard{0}), on(Axis::kDpShard, Shard{0}), shape, kFloat, mesh),
              IsEmpty());
}

TEST(Conversion, AsText) {
  EXPECT_EQ(to_string(over_tp(4, Shard{0}, Shard{1}, {8, 16})[0]),
            "all_to_all dim 0 to 1 on tp: 96 B");
}

// ---- Running the lists: each rank holds values of elements, collectives move them.

using Held = std::map<std::int64_t, std::int64_t>;  // element (row-major index) to value

Held elements(const ShardSpec& spec, const Shape& shape, const Mesh& mesh) {
  Held held;
  for (const Box& box : spec.boxes(shape, mesh)) {
    for (std::int64_t i = 0; i < box.numel(); ++i) {
      const std::int64_t row = box.begin[0] + i / box.size[1];
      held[row * shape[1] + box.begin[1] + i % box.size[1]] = 0;
    }
  }
  return held;
}

std::int64_t truth(std::int64_t element) { return 1000 + 7 * element; }

// The value that this rank holds: its share of a sum over every partial axis.
std::int64_t value(std::int64_t element, const ShardSpec& spec, const Mesh& mesh) {
  std::int64_t result = truth(element);
  for (const ShardSpec::On& on : spec.on) {
    if (!std::holds_alternative<Partial>(on.placement)) continue;
    // n times the truth on the first of n ranks and minus the truth on the others add up to it.
    result *= mesh.coord(on.axes) == 0 ? mesh.degree(on.axes) : -1;
  }
  return result;
}

std::vector<Held> lay_out(const ShardSpec& spec, const Shape& shape, const Mesh& mesh) {
  std::vector<Held> ranks;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    ranks.push_back(elements(spec, shape, mesh.with_rank(rank)));
    for (auto& [element, v] : ranks.back()) v = value(element, spec, mesh.with_rank(rank));
  }
  return ranks;
}

// A step names no axis of degree 1, so neither does what it is compared with.
ShardSpec cutting(const ShardSpec& spec, const Mesh& mesh) {
  ShardSpec result;
  for (const ShardSpec::On& on : spec.on) {
    AxisSet axes;
    for (Axis axis : {Axis::kDpShard, Axis::kCp, Axis::kTp}) {
      if (on.axes.contains(axis) && mesh.degree(axis) > 1) axes = axes | axis;
    }
    if (!axes.empty()) result.on.push_back({axes, on.placement});
  }
  return result;
}

const ShardSpec::On* find(const ShardSpec& spec, AxisSet axes) {
  for (const ShardSpec::On& on : spec.on) {
    if (on.axes == axes) return &on;
  }
  return nullptr;
}

// The layout after `step`: its axes leave, and come back as `to` places them where they are cut.
// A sum over more axes than the step's keeps the others.
ShardSpec after(const ShardSpec& now, const Collective& step, const ShardSpec& to) {
  ShardSpec next;
  for (const ShardSpec::On& on : now.on) {
    if (!on.axes.intersects(step.axes)) {
      next.on.push_back(on);
    } else if (!(on.axes - step.axes).empty()) {
      next.on.push_back({on.axes - step.axes, on.placement});
    }
  }
  if (step.kind != Kind::kAllReduce && step.kind != Kind::kAllGather) {
    next.on.push_back(*find(to, step.axes));
  }
  return next;
}

// What rank `rank` holds after the step; fails where a needed element is on no member of its group.
Held run(const Collective& step, const std::vector<Held>& ranks, const ShardSpec& next,
         const Shape& shape, const Mesh& mesh) {
  const bool adds = step.kind == Kind::kAllReduce || step.kind == Kind::kReduceScatter;
  const bool alone = step.kind == Kind::kSlice;
  Held result = elements(next, shape, mesh);
  for (auto& [element, v] : result) {
    std::optional<std::int64_t> found;
    for (int member : alone ? std::vector<int>{mesh.rank()} : mesh.group(step.axes)) {
      const Held& held = ranks[static_cast<std::size_t>(member)];
      const auto at = held.find(element);
      if (at == held.end()) continue;
      found = adds && found ? *found + at->second : at->second;
    }
    EXPECT_TRUE(found.has_value()) << "element " << element << " is nowhere in the group";
    v = found.value_or(0);
  }
  return result;
}

Placement random_placement(RandomMeshes& random, int degree, bool partial) {
  const int kind = random.below(partial ? 4 : 3);
  if (kind == 0) return Replicate{};
  if (kind == 3) return Partial{};
  Shard shard{.dim = random.below(2), .grain = 1 + random.below(2)};
  if (random.below(4) == 0) shard.layout = Layout::kZigzag;
  if (random.below(4) == 0 && degree % 2 == 0) shard.repeat = 2;
  return shard;
}

ShardSpec random_spec(RandomMeshes& random, const Mesh& mesh, bool partial) {
  const AxisSet both{Axis::kDpShard, Axis::kCp};
  std::vector<AxisSet> sets = {Axis::kTp};
  if (random.coin()) {
    sets.push_back(both);
  } else {
    sets.push_back(Axis::kCp);
    sets.push_back(Axis::kDpShard);
  }
  if (random.coin()) std::swap(sets.front(), sets.back());
  ShardSpec spec;
  for (AxisSet axes : sets) {
    spec.on.push_back({axes, random_placement(random, mesh.degree(axes), partial)});
  }
  return spec;
}

TEST(ConversionProperty, TheListGivesTheWantedLayout) {
  RandomMeshes random(5);
  std::map<Kind, int> kinds;
  for (int n = 0; n < 3000; ++n) {
    const Mesh mesh = random.mesh(12);
    const Shape shape = {1 + random.below(9), 1 + random.below(9)};
    const ShardSpec from = random_spec(random, mesh, true);
    const ShardSpec to = random_spec(random, mesh, false);
    const auto list = conversion(from, to, shape, kFloat, mesh);
    SCOPED_TRACE(mesh.to_string() + ": " + to_string(from) + " to " + to_string(to));
    std::vector<Held> ranks = lay_out(from, shape, mesh);
    ShardSpec now = cutting(from, mesh);
    for (const Collective& step : list) {
      ++kinds[step.kind];
      ASSERT_GT(mesh.degree(step.axes), 1);
      const ShardSpec next = after(now, step, cutting(to, mesh));
      std::vector<Held> moved;
      for (int rank = 0; rank < mesh.world_size(); ++rank) {
        moved.push_back(run(step, ranks, next, shape, mesh.with_rank(rank)));
      }
      now = next;
      ranks = moved;
    }
    ASSERT_EQ(ranks, lay_out(to, shape, mesh));
    if (::testing::Test::HasFailure()) break;
  }
  EXPECT_EQ(kinds.size(), 5U);  // every kind was exercised
}

TEST(ConversionProperty, ThereAndBackAgain) {
  RandomMeshes random(6);
  for (int n = 0; n < 2000; ++n) {
    const Mesh mesh = random.mesh(12);
    const Shape shape = {24, 24};
    const ShardSpec a = random_spec(random, mesh, false);
    const ShardSpec b = random_spec(random, mesh, false);
    std::int64_t there = 0;
    for (const Collective& step : conversion(a, b, shape, kFloat, mesh)) {
      ASSERT_GE(step.bytes_sent.value, 0);
      there += step.bytes_sent.value;
    }
    ASSERT_THAT(conversion(a, a, shape, kFloat, mesh), IsEmpty());
    // Never more than gathering everything everywhere.
    ASSERT_LE(there, 3 * 24 * 24 * 4 * 2) << to_string(a) << " to " << to_string(b);
  }
}

}  // namespace
}  // namespace quatrain
