// SPDX-License-Identifier: Apache-2.0
// Each pattern on made-up tensors, on meshes of several axes.
#include "quatrain/verify/diagnose.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <functional>

namespace quatrain {
namespace {

Mesh mesh_of(int replicate, int shard, int tp) {
  Mesh::Degrees degrees{1, 1, 1, 1, 1, 1, 1, 1, 1};
  degrees[static_cast<std::size_t>(Axis::kDpReplicate)] = replicate;
  degrees[static_cast<std::size_t>(Axis::kDpShard)] = shard;
  degrees[static_cast<std::size_t>(Axis::kTp)] = tp;
  return Mesh(degrees, 0);
}

at::Tensor right() { return at::arange(24, at::kDouble).add(1.0).sin().view({12, 2}); }

// What every rank of the mesh holds of right() under a placement, each piece a copy.
Scattered scattered(const Mesh& mesh, const ShardSpec& placement) {
  const at::Tensor want = right();
  Scattered tensor{{12, 2}, {}};
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const Box box = placement.boxes(tensor.shape, mesh.with_rank(rank)).at(0);
    tensor.pieces.push_back({rank, box, within(want, box).clone()});
  }
  return tensor;
}
ShardSpec on(Axis axis, Shard shard = {}) { return {{{axis, shard}}}; }

using Damage = std::function<void(Piece& piece, const Mesh& at)>;
Scattered damaged(Scattered tensor, const Mesh& mesh, const Damage& damage) {
  for (Piece& piece : tensor.pieces) {
    piece.values = piece.values.clone();
    damage(piece, mesh.with_rank(piece.rank));
  }
  return tensor;
}

struct Says {
  std::vector<AxisSet> axes;
  std::string hint;
};
void expect(const Scattered& got, const Mesh& mesh, const Says& says) {
  const Diagnosis found = diagnose(got, right(), mesh, {"gradient", 1e-12});
  EXPECT_EQ(found.axes, says.axes) << found.hint;
  EXPECT_EQ(found.hint, says.hint);
}
Damage times(double factor) {
  return [factor](Piece& piece, const Mesh&) { piece.values.mul_(factor); };
}

TEST(Diagnose, FactorsOfAnAxis) {
  const Mesh mesh = mesh_of(1, 2, 3);
  for (const ShardSpec& placement : {ShardSpec{}, on(Axis::kTp), on(Axis::kDpShard)}) {
    const Scattered all = scattered(mesh, placement);
    expect(damaged(all, mesh, times(1.0 / 3)), mesh,
           {{Axis::kTp}, "1/tp of the gradient: a sum over tp is missing, or taken as a mean"});
    expect(damaged(all, mesh, times(3.0)), mesh,
           {{Axis::kTp}, "tp times the gradient: summed twice over tp"});
    expect(damaged(all, mesh, times(2.0)), mesh,
           {{Axis::kDpShard}, "dp_shard times the gradient: summed twice over dp_shard"});
    expect(damaged(all, mesh, times(6.0)), mesh,
           {{AxisSet(Axis::kDpShard) | Axis::kTp},
            "(dp_shard x tp) times the gradient: summed twice over dp_shard x tp"});
    expect(damaged(all, mesh, times(1.01)), mesh, {{}, "1.01 times the gradient"});
    expect(damaged(all, mesh, times(0.0)), mesh, {{}, "the gradient is zero"});
  }
}

TEST(Diagnose, EqualDegreesAreAllNamed) {
  const Mesh mesh = mesh_of(2, 1, 2);
  expect(damaged(scattered(mesh, {}), mesh, times(0.5)), mesh,
         {{Axis::kDpReplicate, Axis::kTp},
          "1/dp_replicate or 1/tp of the gradient: a sum over dp_replicate or tp is missing, or "
          "taken as a mean"});
}

// Copies that were never summed: each rank's own part.
TEST(Diagnose, CopiesThatAddUp) {
  const Mesh mesh = mesh_of(2, 1, 2);
  const auto parts_over = [](Axis axis) {
    return [axis](Piece& piece, const Mesh& at) {
      const at::Tensor part = piece.values.mul(piece.values).mul(0.3);
      piece.values.copy_(at.coord(axis) == 0 ? piece.values.sub(part) : part);
    };
  };
  for (const ShardSpec& placement : {ShardSpec{}, on(Axis::kDpReplicate)}) {
    expect(damaged(scattered(mesh, placement), mesh, parts_over(Axis::kTp)), mesh,
           {{Axis::kTp},
            "the copies of the gradient differ over tp and add up to the right one: a sum over tp "
            "is missing"});
  }
}

// Two heads on four ranks: pairs of neighbours are copies.
TEST(Diagnose, CopiesOfReplicatedHeadsThatAddUp) {
  const Mesh mesh = mesh_of(1, 1, 4);
  const Scattered got = damaged(
      scattered(mesh, on(Axis::kTp, {.repeat = 2})), mesh, [](Piece& piece, const Mesh& at) {
        const at::Tensor part = piece.values.mul(piece.values).mul(0.3);
        piece.values.copy_(at.coord(Axis::kTp) % 2 == 0 ? piece.values.sub(part) : part);
      });
  expect(got, mesh,
         {{Axis::kTp},
          "the copies of the gradient differ over tp and add up to the right one: a sum over tp is "
          "missing"});
}

TEST(Diagnose, FactorOfTheCopies) {
  const Mesh mesh = mesh_of(1, 1, 6);
  expect(damaged(scattered(mesh, on(Axis::kTp, {.repeat = 2})), mesh, times(2.0)), mesh,
         {{Axis::kTp}, "2 times the gradient: summed twice over its copies on tp"});
}

TEST(Diagnose, OneCopyIsWrong) {
  const Mesh mesh = mesh_of(1, 1, 3);
  const Scattered got = damaged(scattered(mesh, {}), mesh, [](Piece& piece, const Mesh& at) {
    if (at.coord(Axis::kTp) == 2) piece.values[5][1] += 0.1;
  });
  expect(got, mesh, {{Axis::kTp}, "only the copy at tp 2 is wrong"});
}

TEST(Diagnose, ShardsSwapped) {
  const Mesh mesh = mesh_of(1, 2, 3);
  for (const Axis axis : {Axis::kTp, Axis::kDpShard}) {
    const Scattered all = scattered(mesh, on(axis));
    Scattered got = all;
    for (Piece& piece : got.pieces) {
      const Mesh at = mesh.with_rank(piece.rank);
      if (at.coord(axis) > 1) continue;
      const int peer = at.group(axis)[static_cast<std::size_t>(1 - at.coord(axis))];
      piece.values = all.pieces[static_cast<std::size_t>(peer)].values;
    }
    const std::string name_of = std::string(name(axis));
    expect(got, mesh, {{axis}, "shards 0 and 1 of " + name_of + " are swapped"});
  }
}

TEST(Diagnose, OneShardIsWrong) {
  const Mesh mesh = mesh_of(1, 2, 3);
  const Scattered all = scattered(mesh, on(Axis::kTp));
  expect(damaged(all, mesh,
                 [](Piece& piece, const Mesh& at) {
                   if (at.coord(Axis::kTp) == 1) piece.values[0][1] += 0.1;
                 }),
         mesh, {{Axis::kTp}, "only shard 1 of tp differs"});
  const Scattered cut = scattered(mesh_of(1, 1, 3), on(Axis::kTp));
  expect(damaged(cut, mesh_of(1, 1, 3),
                 [](Piece& piece, const Mesh& at) {
                   if (at.coord(Axis::kTp) == 2) piece.values.mul_(2.0);
                 }),
         mesh_of(1, 1, 3), {{Axis::kTp}, "only shard 2 of tp differs: 2 times the gradient"});
}

TEST(Diagnose, MostShardsAreWrong) {
  const Mesh mesh = mesh_of(1, 1, 3);
  expect(damaged(scattered(mesh, on(Axis::kTp)), mesh,
                 [](Piece& piece, const Mesh& at) {
                   if (at.coord(Axis::kTp) > 0) piece.values.copy_(piece.values.exp());
                 }),
         mesh, {{}, "no pattern"});
}

TEST(Diagnose, NoPattern) {
  const Mesh mesh = mesh_of(1, 2, 2);
  expect(damaged(scattered(mesh, on(Axis::kTp)), mesh,
                 [](Piece& piece, const Mesh&) { piece.values.copy_(piece.values.exp()); }),
         mesh, {{}, "no pattern"});
  expect(damaged(scattered(Mesh(), {}), Mesh(),
                 [](Piece& piece, const Mesh&) { piece.values.copy_(piece.values.exp()); }),
         Mesh(), {{}, "no pattern"});
}

}  // namespace
}  // namespace quatrain
