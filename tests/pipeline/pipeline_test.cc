// SPDX-License-Identifier: Apache-2.0
// Pipelines against one rank in float64: losses, norms, every gradient by name and the weights
// after some steps, with SGD without clipping.
#include <gtest/gtest.h>

#include "quatrain/comm/thread/thread.h"
#include "quatrain/engine/rank_thread.h"

#include "tests/pipeline/mutation_run.h"

namespace quatrain {
namespace {

void expect_one_rank(const Case& c) {
  SCOPED_TRACE(c.name());
  const Difference worst = from_one_rank(c);
  EXPECT_LE(worst.max_rel, kTight) << worst.where;
}

TEST(Pipeline, case_001_EveryScheduleEqualsOneRank) {
  for (const Case& c : schedule_grid({2, 4}, 3)) expect_one_rank(c);
}

TEST(Pipeline, ComposesWithEverything) {
  for (const Case& c : sample(composition_grid(3), 40)) expect_one_rank(c);
}

// Orders that add each stage's weight gradients in the order of micro-batches have the same bits,
// whether the backward is split or not.
TEST(Pipeline, SplitBackwardsHaveTheBitsOfFusedOnes) {
  for (const ModelSpec& spec : {tiny_gpt2(), tiny_llama()}) {
    const Recipe recipe{.spec = with_layers(spec, 4), .global_batch = 8, .steps = 3};
    const auto run = [&](const char* schedule) {
      return run_on_threads(recipe, {.accumulation = 8, .schedule = schedule, .pipeline = 4});
    };
    const RunResult fused = run("1f1b");
    for (const char* other : {"gpipe", "eager-1f1b", "zb-h1", "zb-h2", "zb-auto"}) {
      EXPECT_TRUE(same_bits(run(other), fused)) << spec.name << " " << other;
    }
    const auto two_chunks = [&](const char* schedule) {
      return run_on_threads(recipe,
                            {.accumulation = 8, .schedule = schedule, .pipeline = 2, .chunks = 2});
    };
    EXPECT_TRUE(same_bits(two_chunks("interleaved-1f1b"), fused)) << spec.name;
    EXPECT_TRUE(same_bits(two_chunks("interleaved-zb1p"), fused)) << spec.name;
  }
}

TEST(Pipeline, RecomputationKeepsTheBits) {
  for (const char* schedule : {"1f1b", "zb-h2"}) {
    Recipe recipe{.spec = with_layers(tiny_qwen3(), 4), .global_batch = 4, .steps = 2};
    const Geometry geometry{.accumulation = 4, .schedule = schedule, .pipeline = 2};
    const RunResult kept = run_on_threads(recipe, geometry);
    for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
      recipe.recompute = recompute;
      EXPECT_TRUE(same_bits(run_on_threads(recipe, geometry), kept)) << name(recompute);
    }
  }
}

// 5 blocks on 4 stages, 1/2/2/3, ends without blocks, and stages that hold nothing at all.
TEST(Pipeline, case_074_UnevenAndEmptyStages) {
  const std::vector<std::pair<int, std::vector<std::int64_t>>> cuts = {
      {4, {2, 1, 1, 1}}, {4, {1, 2, 2, 3}}, {4, {0, 3, 2, 0}}, {4, {3, 0, 0, 2}}, {3, {0, 4, 0}}};
  for (const auto& [ranks, layers] : cuts) {
    std::int64_t blocks = 0;
    for (const std::int64_t count : layers) blocks += count;
    for (const auto& [zero, shards] : {std::pair{0, 1}, {2, 2}, {3, 2}}) {
      for (const char* schedule : {"1f1b", "zb-h1"}) {
        expect_one_rank(
            {{.spec = with_layers(tiny_gpt2(), blocks), .global_batch = 4 * shards, .steps = 2},
             {.shards = shards,
              .zero_stage = zero,
              .accumulation = 4,
              .schedule = schedule,
              .pipeline = ranks,
              .layers = layers}});
      }
    }
  }
  expect_one_rank({{.spec = with_layers(tiny_llama(), 5), .global_batch = 6, .steps = 2},
                   {.accumulation = 6,
                    .schedule = "zb-v",
                    .pipeline = 2,
                    .chunks = 2,
                    .layers = {2, 0, 3, 0}}});
}

TEST(Pipeline, AnyNumberOfMicrobatches) {
  for (const char* schedule : {"gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2", "zb-auto"}) {
    for (const int m : {1, 2, 3, 5, 7}) {
      expect_one_rank({{.spec = with_layers(tiny_qwen2(), 4), .global_batch = m, .steps = 2},
                       {.accumulation = m, .schedule = schedule, .pipeline = 4}});
    }
  }
  for (const char* schedule : {"zb-v", "v-half", "v-min", "1f1b-v"}) {
    for (const int m : {1, 3, 5}) {
      expect_one_rank({{.spec = with_layers(tiny_qwen2(), 4), .global_batch = m, .steps = 2},
                       {.accumulation = m, .schedule = schedule, .pipeline = 2, .chunks = 2}});
    }
  }
}

// Whatever else changes what a stage's units do.
TEST(Pipeline, ZeroInEveryForm) {
  const Recipe recipe{.spec = with_layers(tiny_gpt2(), 4), .global_batch = 16, .steps = 2};
  for (const auto& [schedule, chunks] :
       {std::pair{"looped-bfs", 2}, {"zb-v", 2}, {"1f1b", 1}, {"interleaved-1f1b", 2}}) {
    Geometry geometry{
        .shards = 2, .accumulation = 4, .schedule = schedule, .pipeline = 2, .chunks = chunks};
    for (const int zero : {2, 3}) {
      for (const int prefetch : {0, 3}) {
        geometry.zero_stage = zero;
        geometry.prefetch = prefetch;
        expect_one_rank({recipe, geometry});
      }
    }
    geometry.gather_once = true;
    expect_one_rank({recipe, geometry});
    geometry.reduce_once = true;
    expect_one_rank({recipe, geometry});
    geometry.replicas = 2;
    expect_one_rank({recipe, geometry});
    geometry.zero_stage = 1;
    expect_one_rank({recipe, geometry});
  }
}

TEST(Pipeline, FrozenParts) {
  for (const std::vector<std::string>& trainable :
       {std::vector<std::string>{"*.h.1.*"}, {"*wte*", "*ln*"}, {"*.h.3.*", "*ln_f*"}}) {
    const Recipe recipe{
        .spec = with_layers(tiny_gpt2(), 4), .trainable = trainable, .global_batch = 4, .steps = 2};
    for (const char* schedule : {"1f1b", "zb-h1"}) {
      expect_one_rank({recipe, {.accumulation = 4, .schedule = schedule, .pipeline = 4}});
      expect_one_rank(
          {recipe,
           {.shards = 2, .zero_stage = 3, .accumulation = 2, .schedule = schedule, .pipeline = 2}});
    }
  }
}

// Most are rejected, and of those most stop at once or compute something else.
TEST(Pipeline, BrokenSchedulesAreRejected) {
  const RunCounts counts = run_mutations(2026, 200);
  EXPECT_GT(counts.stopped, 100);
  EXPECT_GT(counts.accepted, 5);
}

TEST(Pipeline, EvaluationEqualsOneRank) {
  for (const auto& [schedule, chunks] :
       {std::pair{"1f1b", 1}, {"interleaved-1f1b", 2}, {"zb-v", 2}}) {
    const Recipe recipe{.spec = with_layers(tiny_gpt2(), 4), .global_batch = 4};
    std::vector<double> losses;
    for (const Geometry& geometry : {Geometry{.accumulation = 4}, Geometry{.shards = 2,
                                                                  .zero_stage = 3,
                                                                  .accumulation = 2,
                                                                  .schedule = schedule,
                                                                  .pipeline = 2,
                                                                  .chunks = chunks}}) {
      run_thread_ranks(geometry.ranks(), {}, [&](std::unique_ptr<Communicator> world) {
        const RankThread prologue({.threads = 1});
        GeometryJob job(recipe, geometry, *world);
        const EvalReport report = evaluate(job.model, job.units, job.pipeline, job.data, 2);
        if (world->rank() == 0) losses.push_back(report.loss);
        EXPECT_EQ(report.sequences, 8);
      });
    }
    EXPECT_NEAR(losses[1], losses[0], 1e-12 * losses[0]) << schedule;
  }
}

}  // namespace
}  // namespace quatrain
