// SPDX-License-Identifier: Apache-2.0
// One flipped bit in what several ranks hold is found, with tensor, rank and axis; healthy jobs
// pass, whatever is cut and wherever.
#include "quatrain/engine/replica_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "quatrain/base/error.h"
#include "quatrain/comm/thread/thread.h"
#include "quatrain/engine/rank_thread.h"
#include "tests/tensor/grid.h"

namespace quatrain {
namespace {

using ::testing::HasSubstr;

struct Flip {
  int rank = -1;
  std::string tensor = {};
};

// Trains two steps, flips, checks; what rank 0 was told, empty when nothing.
std::string told(const Geometry& geometry, const Flip& flip) {
  std::string message;
  const Recipe recipe{
      .spec = tensor_qwen3(), .optimizer = {.name = "adamw", .lr = 1e-2}, .global_batch = 4};
  run_thread_ranks(geometry.ranks(), {}, [&](std::unique_ptr<Communicator> world) {
    const RankThread prologue({.threads = 1});
    GeometryJob job(recipe, geometry, *world);
    job.step(1);
    job.step(2);
    if (world->rank() == flip.rank) {
      for (const UnitShard& shard : job.units.shards()) {
        for (const ShardPart& part : parts(shard)) {
          if (part.param->info.name != flip.tensor) continue;
          at::Tensor value = shard.value[part.value_begin];
          value.copy_(value.mul(1.0 + 0x1p-52));
        }
      }
    }
    try {
      check_replicas(job.units, *job.optimizer, job.mesh, *world);
    } catch (const BugError& error) {
      if (world->rank() == 0) message = error.what();
    }
  });
  return message;
}

TEST(CheckReplicas, HealthyJobsPass) {
  for (const int zero : {0, 1, 2, 3}) {
    EXPECT_EQ(told({.replicas = 2, .shards = 2, .zero_stage = zero, .tensor = 2}, {}), "");
    EXPECT_EQ(told({.shards = 2, .zero_stage = zero, .tensor = 4, .sequence_parallel = true}, {}),
              "");
  }
}

TEST(CheckReplicas, case_019_AFlippedBitIsNamedWithRankAndAxis) {
  const std::string norm = "model.layers.1.input_layernorm.weight";
  const std::string down = "model.layers.0.mlp.down_proj.weight";
  const std::string key = "model.layers.0.self_attn.k_proj.weight";
  // Copies over tp: a norm's gain on all four ranks, a key head on two neighbours.
  EXPECT_THAT(told({.tensor = 4}, {2, norm}),
              HasSubstr(norm + ": rank 2 holds other bits than rank 0, along tp"));
  EXPECT_THAT(told({.tensor = 4, .sequence_parallel = true}, {3, key}),
              HasSubstr(key + ": rank 3 holds other bits than rank 2, along tp"));
  // Copies over the data ranks of what tp cuts.
  EXPECT_THAT(told({.shards = 3, .tensor = 2}, {3, down}),
              HasSubstr(down + ": rank 3 holds other bits than rank 1, along dp_shard"));
  EXPECT_THAT(told({.replicas = 3, .shards = 2, .zero_stage = 3}, {5, down}),
              HasSubstr(down + ": rank 5 holds other bits than rank 1, along dp_replicate"));
}

TEST(CheckReplicas, OnlyCopiesAreCompared) {
  // A matrix that tp cuts and no data rank shares: nobody else holds it.
  EXPECT_EQ(told({.tensor = 2}, {1, "model.layers.0.mlp.down_proj.weight"}), "");
}

TEST(FindDrifts, MajoritiesAndPairs) {
  // Three tensors on four ranks: equal; rank 2 alone; two and two, and rank 3 holds other elements.
  const std::vector<HeldPart> held{{1, 5}, {1, 7}, {1, 8}, {1, 5}, {1, 7}, {1, 9},
                                   {1, 5}, {1, 6}, {1, 9}, {1, 5}, {1, 7}, {2, 8}};
  const std::vector<Drift> drifts = find_drifts(held, 3);
  ASSERT_EQ(drifts.size(), 2U);
  EXPECT_EQ(drifts[0].tensor, 1U);
  EXPECT_THAT(drifts[0].ranks, ::testing::ElementsAre(2));
  EXPECT_EQ(drifts[0].against, 0);
  EXPECT_EQ(drifts[1].tensor, 2U);
  EXPECT_THAT(drifts[1].ranks, ::testing::ElementsAre(0));
  EXPECT_EQ(drifts[1].against, 1);
}

}  // namespace
}  // namespace quatrain
