// SPDX-License-Identifier: Apache-2.0
// Post-validation has the bits of the plain update: where it clips, where a gradient is not finite
// on any rank, and where one evaluates or ends between steps (case 076).
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <limits>

#include "quatrain/comm/thread/thread.h"
#include "quatrain/engine/rank_thread.h"
#include "tests/pipeline/grid.h"

namespace quatrain {
namespace {

struct Plant {
  int step = 0;  // 0: never
  int rank = 0;
};

// Runs steps without settling between them, but before an evaluation, if there is one.
RunResult run(const Recipe& recipe, const Geometry& geometry, bool post_validation, Plant plant,
              int evaluated_after = 0) {
  RunResult result;
  const Side side = side_of(recipe, geometry);
  run_thread_ranks(geometry.ranks(), {}, [&](std::unique_ptr<Communicator> world) {
    const RankThread prologue({.threads = 1});
    const bool tells = world->rank() == 0;
    const auto data = side.data(side.mesh(world->rank()));
    RankJobOptions options = side.job;
    options.executor.post_validation = post_validation;
    RankJob* here = nullptr;
    int step = 0;
    options.executor.on_gradients = [&] {
      if (step != plant.step || world->rank() != plant.rank) return;
      here->units.shards().front().grad.fill_(std::numeric_limits<double>::infinity());
    };
    RankJob job(options, *data, *world);
    here = &job;
    const auto note = [&] {
      if (!tells || step == 0) return;
      result.losses.push_back(job.executor.settled().loss);
      result.norms.push_back(job.executor.settled().grad_norm);
    };
    for (step = 1; step <= recipe.steps; ++step) {
      job.executor.run(job.schedule, step, 1.0);
      if (!post_validation || step == evaluated_after || step == recipe.steps) {
        job.executor.settle();
        note();
      }
      if (step != evaluated_after) continue;
      const double loss = evaluate(job.model, job.units, job.pipeline, *data, 1).loss;
      if (tells) result.losses.push_back(loss);
    }
    result.weights.resize(1);
    const NamedTensors whole = whole_weights(job.units);
    if (tells) result.weights[0] = whole;
  });
  return result;
}

void expect_same_bits(const RunResult& a, const RunResult& b) {
  for (const auto& [name, weight] : a.weights[0]) {
    EXPECT_TRUE(weight.equal(b.weights[0].at(name))) << name;
  }
  EXPECT_EQ(a.losses.back(), b.losses.back());
  EXPECT_EQ(a.norms.back(), b.norms.back());
}

Recipe recipe_of(double max_norm) {
  return {.spec = with_layers(tiny_gpt2(), 4),
          .optimizer = {.name = "adamw", .lr = 1e-2, .weight_decay = 0.1, .max_norm = max_norm},
          .global_batch = 8,
          .steps = 4};
}
Geometry geometry_of(const std::string& schedule, int chunks = 1) {
  return {
      .accumulation = 8, .schedule = schedule, .pipeline = chunks == 2 ? 2 : 4, .chunks = chunks};
}

TEST(PostValidation, case_076_ClippingThatBites) {
  for (const double max_norm : {0.0, 0.05, 1e9}) {
    for (const auto& [name, chunks] : {std::pair{"1f1b", 1}, {"zb-h2", 1}, {"zb-v", 2}}) {
      SCOPED_TRACE(std::string(name) + ", clipped to " + std::to_string(max_norm));
      const Recipe recipe = recipe_of(max_norm);
      expect_same_bits(run(recipe, geometry_of(name, chunks), true, {}),
                       run(recipe, geometry_of(name, chunks), false, {}));
    }
  }
}

TEST(PostValidation, case_076_InfinityOnAnyRank) {
  const Recipe recipe = recipe_of(0.3);
  for (int rank = 0; rank < 4; ++rank) {
    for (const int step : {1, 2, 4}) {
      SCOPED_TRACE("rank " + std::to_string(rank) + ", step " + std::to_string(step));
      expect_same_bits(run(recipe, geometry_of("zb-h2"), true, {step, rank}),
                       run(recipe, geometry_of("zb-h2"), false, {step, rank}));
    }
  }
}

TEST(PostValidation, case_076_EvaluationBetweenSteps) {
  const Recipe recipe = recipe_of(0.05);
  const auto post = run(recipe, geometry_of("1f1b"), true, {}, 2);
  const auto plain = run(recipe, geometry_of("1f1b"), false, {}, 2);
  expect_same_bits(post, plain);
  EXPECT_EQ(post.losses[1], plain.losses[2]);  // the evaluation's, behind one report or two
}

}  // namespace
}  // namespace quatrain
