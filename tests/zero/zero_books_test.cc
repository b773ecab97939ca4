// SPDX-License-Identifier: Apache-2.0
// The books of data parallelism: bytes and calls on the wire, bytes that a rank keeps, and what it
// holds for a while, counted on every rank while steps run, equal cost/ exactly.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "quatrain/cost/peaks.h"
#include "quatrain/cost/walk.h"
#include "tests/zero/counted_run.h"

namespace quatrain {
namespace {

std::vector<Geometry> geometries() {
  std::vector<Geometry> all;
  for (const int zero : {0, 1, 2, 3}) {
    for (const int accumulation : {1, 3}) {
      for (const int shards : {1, 2, 3, 8}) all.push_back({1, shards, zero, accumulation});
      all.push_back({2, 2, zero, accumulation});
      all.push_back({3, 1, zero, accumulation});
    }
  }
  all.push_back({1, 4, 2, 3, 1, true});
  all.push_back({1, 4, 3, 3, 2, true});
  return all;
}

std::vector<Recipe> recipes() {
  std::vector<Recipe> all;
  for (const Dtype dtype : {Dtype::kFloat64, Dtype::kFloat32, Dtype::kBFloat16}) {
    Recipe recipe{.spec = tiny_gpt2(), .dtype = dtype, .optimizer = {.name = "adamw"}};
    all.push_back(recipe);
    recipe.spec = tiny_qwen3();
    recipe.spec.tied = false;
    recipe.trainable = {"*layers.1.*", "*q_proj*", "*lm_head*"};
    all.push_back(recipe);
  }
  return all;
}

TEST(ZeroBooks, BytesOnTheWireAreTheCost) {
  std::mutex mutex;
  for (const Recipe& recipe : recipes()) {
    for (const Geometry& geometry : geometries()) {
      on_every_rank(recipe, geometry, [&](GeometryJob& job, CommCounts& counts, MemoryOwner&) {
        (void)job.step(1);
        const CommCounts before = counts;
        (void)job.step(2);
        const WireCosts want =
            step_wire(job.schedule.per_rank[0], recipe.spec, work_of(recipe, job),
                      zero_shape(recipe.spec, job.plan, recipe.trainable, job.mesh.rank()));
        const std::lock_guard lock(mutex);
        EXPECT_EQ(text_of(wire_of(counts.since(before))), text_of(want))
            << geometry.name() << " rank " << job.mesh.rank();
      });
    }
  }
}

TEST(ZeroBooks, case_085_case_101_StateIsTheCost) {
  std::mutex mutex;
  for (const Recipe& recipe : recipes()) {
    for (const Geometry& geometry : geometries()) {
      on_every_rank(recipe, geometry, [&](GeometryJob& job, CommCounts&, MemoryOwner& memory) {
        const StateBytes want =
            state_bytes(zero_shape(recipe.spec, job.plan, recipe.trainable, job.mesh.rank()),
                        recipe.optimizer.name, 0.0);
        for (const int step : {0, 1, 2}) {
          if (step > 0) (void)job.step(step);
          const MemoryUse live = memory.live();
          const std::lock_guard lock(mutex);
          EXPECT_EQ(live[MemoryCategory::kParams], want.params.value)
              << geometry.name() << " step " << step;
          EXPECT_EQ(live[MemoryCategory::kGrads], want.grads.value)
              << geometry.name() << " step " << step;
          EXPECT_EQ(live[MemoryCategory::kOptimizer], want.optimizer.value)
              << geometry.name() << " step " << step;
          EXPECT_EQ(live[MemoryCategory::kActivations], 0) << geometry.name() << " step " << step;
          EXPECT_EQ(live[MemoryCategory::kBuffers], 0) << geometry.name() << " step " << step;
        }
      });
    }
  }
}

TEST(ZeroBooks, case_086_WhatLivesForAWhileIsTheCost) {
  std::mutex mutex;
  for (const Recipe& recipe : recipes()) {
    for (const Geometry& geometry : geometries()) {
      on_every_rank(recipe, geometry, [&](GeometryJob& job, CommCounts&, MemoryOwner& memory) {
        const ZeroShape shape =
            zero_shape(recipe.spec, job.plan, recipe.trainable, job.mesh.rank());
        const RowPeaks want =
            row_peaks(job.schedule.per_rank[0], shape, recipe.spec, work_of(recipe, job));
        const std::int64_t kept = memory.live()[MemoryCategory::kGrads];
        memory.reset_peak();
        (void)job.step(1);
        const MemoryUse highest = memory.highest();
        const std::lock_guard lock(mutex);
        EXPECT_EQ(highest[MemoryCategory::kGrads] - kept, want.whole_grads.value)
            << geometry.name();
        EXPECT_EQ(highest[MemoryCategory::kBuffers], want.buffers.value) << geometry.name();
      });
    }
  }
}

// Case 086's other half, on the runtime: deeper models peak at the same bytes.
TEST(ZeroBooks, PeaksDoNotDependOnDepth) {
  std::mutex mutex;
  std::map<int, std::vector<std::int64_t>> peaks;  // by zero stage
  for (const std::int64_t layers : {2, 6}) {
    for (const int zero : {2, 3}) {
      Recipe recipe{.spec = tiny_qwen3(), .optimizer = {.name = "adamw"}};
      recipe.spec.layers = layers;
      on_every_rank(recipe, {1, 4, zero, 2},
                    [&](GeometryJob& job, CommCounts&, MemoryOwner& memory) {
                      const std::int64_t kept = memory.live()[MemoryCategory::kGrads];
                      memory.reset_peak();
                      (void)job.step(1);
                      const MemoryUse highest = memory.highest();
                      if (job.mesh.rank() != 0) return;
                      const std::lock_guard lock(mutex);
                      peaks[zero].push_back(highest[MemoryCategory::kGrads] - kept +
                                            highest[MemoryCategory::kBuffers]);
                    });
    }
  }
  EXPECT_EQ(peaks[2][0], peaks[2][1]);
  EXPECT_EQ(peaks[3][0], peaks[3][1]);
}

}  // namespace
}  // namespace quatrain
