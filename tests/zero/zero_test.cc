// SPDX-License-Identifier: Apache-2.0
// Data parallelism on thread ranks equals one rank: losses, norms, every gradient by name, and the
// weights after five steps, in float64.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "quatrain/base/rng.h"
#include "quatrain/comm/thread/thread.h"
#include "quatrain/engine/rank_thread.h"
#include "tests/zero/geometry_run.h"
#include "tests/zero/optimizers.h"

namespace quatrain {
namespace {

constexpr double kTolerance = 1e-12;

void expect_equal(const Recipe& recipe, const Geometry& geometry, const RunResult& want) {
  const Difference worst = difference(run_on_threads(recipe, geometry), want);
  EXPECT_LE(worst.max_rel, kTolerance) << recipe.spec.name << ", " << recipe.optimizer.name << ", "
                                       << geometry.name() << ": " << worst.where;
}

std::vector<Geometry> grid() {
  std::vector<Geometry> all;
  for (const int zero : {0, 1, 2, 3}) {
    for (const int accumulation : {1, 4}) {
      for (const int shards : {1, 2, 3, 4, 8}) all.push_back({1, shards, zero, accumulation});
      for (const auto& [replicas, shards] : {std::pair{2, 2}, {2, 4}, {4, 2}, {4, 1}}) {
        all.push_back({replicas, shards, zero, accumulation});
      }
    }
  }
  return all;
}

// Samples train unequal numbers of tokens: a mean of means would show.
TEST(Zero, case_004_case_131_EqualsOneRank) {
  for (const ModelSpec& spec : {tiny_gpt2(), tiny_qwen3()}) {
    for (const OptimizerOptions& optimizer : {kSgd, kAdamW}) {
      const Recipe recipe{.spec = spec, .optimizer = optimizer};
      const RunResult want = run_on_threads(recipe, {});
      for (const Geometry& geometry : grid()) expect_equal(recipe, geometry, want);
    }
  }
}

// Rows that do not divide by the ranks, and fewer rows than ranks.
TEST(Zero, case_049_AnyNumberOfRows) {
  ModelSpec spec = tiny_qwen3();
  spec.vocab = 7;
  spec.hidden = 6;
  spec.heads = spec.kv_heads = 1;
  spec.head_dim = 4;
  spec.ffn = 3;
  spec.layers = 1;
  Recipe recipe{.spec = spec, .optimizer = kSgd};
  const RunResult want = run_on_threads(recipe, {});
  for (const int zero : {1, 2, 3}) {
    for (const int shards : {2, 4, 5, 8}) expect_equal(recipe, {1, shards, zero, 1}, want);
  }
}

// A weight that two layers share, with accumulation: the same losses in every stage.
TEST(Zero, case_020_case_023_TiedWeightsWithAccumulation) {
  for (const bool reduce_once : {false, true}) {
    Recipe recipe{.spec = tiny_gpt2(), .optimizer = kAdamW};
    const RunResult want = run_on_threads(recipe, {1, 1, 0, 4});
    for (const int zero : {0, 1, 2, 3}) {
      expect_equal(recipe, {1, 2, zero, 4, 1, reduce_once}, want);
    }
  }
}

TEST(Zero, OtherSchedulesFrozenParametersAndRecompute) {
  Recipe recipe{.spec = with_dropout(tiny_llama()),
                .recompute = Recompute::kFull,
                .trainable = {"*layers.1.*", "*q_proj*", "*norm*"},
                .optimizer = kAdamW,
                .z_loss = 1e-3};
  const RunResult want = run_on_threads(recipe, {});
  for (const int zero : {0, 1, 2, 3}) {
    expect_equal(recipe, {.shards = 4, .zero_stage = zero, .accumulation = 4, .schedule = "gpipe"},
                 want);
    expect_equal(recipe, {1, 4, zero, 4, 3}, want);
  }
}

// Prefetch changes when a unit is gathered, never what is computed; so does when a step's second
// gradients start (buffers that are reused would show at step 2).
TEST(Zero, case_025_case_026_PrefetchKeepsTheBits) {
  for (const ModelSpec& spec : {tiny_gpt2(), tiny_qwen3()}) {
    Recipe recipe{.spec = spec, .optimizer = kAdamW};
    const RunResult want = run_on_threads(recipe, {1, 4, 3, 2, 0});
    for (const int prefetch : {1, 2, 8}) {
      EXPECT_TRUE(same_bits(run_on_threads(recipe, {1, 4, 3, 2, prefetch}), want))
          << spec.name << " prefetch " << prefetch;
    }
  }
}

// Stages that sum the same parts in the same order give the same bits.
TEST(Zero, StagesOfOneGeometryKeepTheLossBits) {
  Recipe recipe{.optimizer = kSgd};
  const RunResult want = run_on_threads(recipe, {1, 4, 0, 1});
  for (const int zero : {1, 2, 3}) {
    EXPECT_EQ(run_on_threads(recipe, {1, 4, zero, 1}).losses, want.losses) << zero;
  }
}

// The gather of the next unit has begun before the layer before it ends: read from the events.
TEST(Zero, TraceShowsThePrefetch) {
  const auto ahead = [](int prefetch) {
    const RunResult run = run_on_threads({}, {1, 2, 3, 1, prefetch});
    std::map<std::string, double> layer_ends;
    int count = 0;
    for (const TraceEvent& event : run.trace) {
      if (event.lane == TraceLane::kCompute) layer_ends[to_string(event.action)] = event.end_us;
    }
    for (const TraceEvent& event : run.trace) {
      if (event.lane != TraceLane::kGather || *event.action.unit == 0) continue;
      const double before = layer_ends.at(fmt::format("0F0.{}", *event.action.unit - 1));
      count += event.begin_us < before ? 1 : 0;
    }
    return count;
  };
  EXPECT_EQ(ahead(0), 0);
  EXPECT_GE(ahead(1), 3);  // two blocks and the head, in the forward
}

// Gradient of one rank is infinite: every rank skips the step, and the next one runs.
TEST(Zero, case_076_AllRanksSkipTheSameStep) {
  std::mutex mutex;
  int skipped = 0;
  int went_on = 0;
  run_thread_ranks(4, {}, [&](std::unique_ptr<Communicator> world) {
    const RankThread prologue({.threads = 1});
    GeometryJob job(Recipe{.optimizer = kAdamW}, {1, 4, 3, 1}, *world);
    const UnitShard& shard = job.units.shards()[1];
    at::Tensor kept = shard.value.clone();
    if (world->rank() == 2) shard.value.fill_(std::numeric_limits<double>::infinity());
    const StepReport bad = job.step(1);
    shard.value.copy_(kept);
    const StepReport good = job.step(2);
    const std::lock_guard lock(mutex);
    skipped += bad.skipped ? 1 : 0;
    went_on += !good.skipped && std::isfinite(good.loss) && job.optimizer->steps_done() == 1;
  });
  EXPECT_EQ(skipped, 4);
  EXPECT_EQ(went_on, 4);
}

}  // namespace
}  // namespace quatrain
