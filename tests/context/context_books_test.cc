// SPDX-License-Identifier: Apache-2.0
// What every rank sends, computes and keeps for shared sequences, counted while steps run, equals
// cost/ exactly.
#include <gtest/gtest.h>

#include <mutex>

#include "tests/books/stash_rows.h"
#include "tests/context/styles.h"
#include "tests/zero/counted_run.h"

namespace quatrain {
namespace {

void expect_the_cost(const Recipe& recipe, const Geometry& geometry) {
  static std::mutex mutex;
  on_every_rank(recipe, geometry, [&](GeometryJob& job, CommCounts& counts, MemoryOwner& m) {
    (void)job.step(1);
    const CommCounts before = counts;
    m.reset_peak();
    const StepReport report = job.step(2);
    const WireCosts sent = wire_of(counts.since(before));
    const WireCosts want =
        step_wire(job.schedule.per_rank[0], recipe.spec, work_of(recipe, job),
                  zero_shape(recipe.spec, job.plan, recipe.trainable, job.mesh.rank()));
    const std::lock_guard lock(mutex);
    const Case shown{recipe, geometry};
    SCOPED_TRACE(shown.name() + ", rank " + std::to_string(job.mesh.rank()));
    EXPECT_EQ(text_of(sent), text_of(want));
    expect_flops(report, work_of(recipe, job), job);
    expect_memory(m, recipe, work_of(recipe, job), job);
  });
}

TEST(ContextBooks, AStepIsTheCost) {
  for (const ModelSpec& spec : context_families()) {
    for (const Style& style : context_styles()) {
      for (const auto recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        for (const Dtype dtype : {Dtype::kFloat64, Dtype::kFloat32}) {
          Recipe recipe{.spec = spec, .dtype = dtype, .recompute = recompute, .global_batch = 2};
          const Geometry geometry = with_style({}, style);
          if (fits(spec, geometry)) expect_the_cost(recipe, geometry);
        }
      }
    }
  }
}

// Routers that are balanced over sequences or micro-batches tell one another their choices; those
// of a global batch need not.
TEST(ContextBooks, EveryBalanceOfRouters) {
  using enum kernels::BalanceOver;
  for (const ModelSpec& spec : expert_models()) {
    for (const auto balance : {kSequence, kMicrobatch, kGlobalBatch}) {
      Recipe recipe{.spec = spec, .global_batch = 2};
      recipe.router.balance = balance;
      expect_the_cost(recipe, with_style({}, {"ring", 2}));
      recipe.recompute = Recompute::kFull;
      expect_the_cost(recipe, with_style({}, {"all_gather", 3}));
    }
  }
}

TEST(ContextBooks, WithTensorsAndZero) {
  for (const Style& style : context_styles()) {
    for (const int zero : {0, 2, 3}) {
      const Geometry geometry = with_style(
          {.shards = 2, .zero_stage = zero, .tensor = 2, .sequence_parallel = true}, style);
      const Recipe recipe{.spec = tensor_llama(), .global_batch = 2};
      if (geometry.ranks() <= 12 && fits(recipe.spec, geometry)) expect_the_cost(recipe, geometry);
    }
  }
}

}  // namespace
}  // namespace quatrain
