// SPDX-License-Identifier: Apache-2.0
// Experts shared by ranks against one rank in float64: what experts_test compares, for ep and for
// experts that are cut otherwise than dense matrices are.
#include <gtest/gtest.h>

#include <algorithm>

#include "quatrain/comm/thread/thread.h"
#include "quatrain/engine/rank_thread.h"
#include "quatrain/engine/replica_check.h"
#include "tests/experts/parallel_grid.h"

namespace quatrain {
namespace {

TEST(ExpertParallel, EqualsOneRank) {
  for (const Case& c : sample(expert_parallel_grid(3), 60)) expect_one_rank(c);
}

// Two ranks with all rows; data ranks with one; tp with slices; shares over data ranks.
TEST(ExpertParallel, EachFoldingAlone) {
  for (const ModelSpec& spec : many_experts()) {
    const Recipe recipe = expert_recipe(spec, 3);
    expect_one_rank({recipe, {.shards = 2, .ep = 2, .etp = 1}});
    expect_one_rank({recipe, {.shards = 2, .ep = 1, .etp = 2}});
    expect_one_rank({recipe, {.tensor = 2, .ep = 1, .etp = 1}});
    expect_one_rank({recipe, {.tensor = 2, .ep = 2, .etp = 1}});
    expect_one_rank({recipe, {.tensor = 4, .ep = 2, .etp = 1}});
    expect_one_rank({recipe, {.tensor = 4, .ep = 2, .etp = 2}});
    expect_one_rank({recipe, {.shards = 2, .tensor = 2, .ep = 1, .etp = 4}});
    expect_one_rank({recipe, {.shards = 4, .tensor = 2, .ep = 2, .etp = 4}});
    expect_one_rank({recipe, {.shards = 2, .tensor = 2, .ep = 2, .etp = 2}});
  }
}

// Each expert's products stay what they are.
TEST(ExpertParallel, PiecesKeepTheBits) {
  for (const ModelSpec& spec : many_experts()) {
    const Recipe recipe = expert_recipe(spec, 2);
    for (Geometry geometry :
         {Geometry{.shards = 2, .ep = 2, .etp = 1}, Geometry{.shards = 2, .ep = 1, .etp = 2},
          Geometry{.shards = 2, .tensor = 2, .ep = 2, .etp = 1}}) {
      const RunResult whole = run_on_threads(recipe, geometry);
      for (const int chunks : {2, 3, 64}) {
        geometry.ep_chunks = chunks;
        SCOPED_TRACE(geometry.name());
        EXPECT_TRUE(same_bits(run_on_threads(recipe, geometry), whole));
      }
    }
  }
}

// Weights of routers, and their selection biases, by expert.
using Scores = std::function<double(std::int64_t expert)>;

// Routers of zeros but for these experts' rows, which stay as drawn; biases as `bias` says.
Recipe with_routers(const ModelSpec& spec, const std::vector<std::int64_t>& drawn,
                    const Scores& bias = nullptr) {
  Recipe recipe = expert_recipe(spec, 3);
  recipe.start = [=, width = spec.hidden](const ParameterInfo& info, at::Tensor part,
                                          std::int64_t first) {
    for (std::int64_t i = 0; i < part.numel(); ++i) {
      const std::int64_t element = first + i;
      if (info.name.ends_with("gate.weight")) {
        const bool kept = std::find(drawn.begin(), drawn.end(), element / width) != drawn.end();
        if (!kept) part[i].fill_(0.0);
      }
      if (bias && info.name.ends_with("e_score_correction_bias")) part[i].fill_(bias(element));
    }
  };
  return recipe;
}

const std::vector<Geometry> kShared = {
    {.shards = 2, .zero_stage = 1, .ep = 2, .etp = 1},
    {.shards = 4, .zero_stage = 3, .ep = 4, .etp = 1},
    {.shards = 8, .zero_stage = 2, .ep = 8, .etp = 1},
    {.shards = 4, .tensor = 2, .sequence_parallel = true, .ep = 8, .etp = 1},
    {.shards = 4, .zero_stage = 1, .tensor = 2, .ep = 4, .etp = 2, .ep_chunks = 2},
    {.shards = 4, .ep = 2, .etp = 2, .ep_chunks = 3},
};

// Ranks without a row, one rank with all of them, most rows with one expert: the same numbers.
TEST(ExpertParallel, case_149_case_157_OneSidedRouters) {
  for (const ModelSpec& spec : many_experts()) {
    for (const Geometry& geometry : kShared) {
      expect_one_rank({with_routers(spec, {}), geometry});   // the first experts get all
      expect_one_rank({with_routers(spec, {7}), geometry});  // and some rows the last one
      if (!spec.experts->selection_bias) continue;
      const auto only = [](std::int64_t expert) { return expert == 3 ? 10.0 : 0.0; };
      expect_one_rank({with_routers(spec, {0, 1, 2, 3, 4, 5, 6, 7}, only), geometry});
    }
  }
}

// What an expert has no room for is decided by the rows of a micro-batch, not by who holds what.
TEST(ExpertParallel, case_158_TheSameChoicesAreDropped) {
  std::int64_t dropped = 0;
  for (const ModelSpec& spec : many_experts()) {
    for (const kernels::DropBy by : {kernels::DropBy::kPosition, kernels::DropBy::kProbability}) {
      for (const int data : {1, 2, 4}) {
        Recipe recipe = expert_recipe(spec, 3);
        recipe.router.capacity = {1.0, by};
        const RunResult want = run_on_threads(recipe, {.accumulation = data});
        for (const int tensor : {1, 2}) {
          for (const int ep : {1, 2, 4}) {
            const Geometry geometry{.shards = data,
                                    .zero_stage = 1,
                                    .tensor = tensor,
                                    .sequence_parallel = ep == 2,
                                    .ep = ep,
                                    .etp = 1};
            if (data * tensor % ep != 0) continue;
            const Difference worst = difference(run_on_threads(recipe, geometry), want);
            EXPECT_LE(worst.max_rel, 1e-12) << geometry.name() << ": " << worst.where;
          }
        }
        dropped += want.routers.back().dropped;
      }
    }
  }
  EXPECT_GT(dropped, 0);
}

// Every copy of an expert has the same bits behind five steps, whoever holds it.
TEST(ExpertParallel, case_011_CopiesOfExpertsStayTheSame) {
  for (const ModelSpec& spec : many_experts()) {
    for (const Geometry& geometry :
         {Geometry{.shards = 2, .tensor = 2, .sequence_parallel = true, .ep = 2, .etp = 1},
          Geometry{.shards = 2, .tensor = 2, .ep = 1, .etp = 1},
          Geometry{.replicas = 2, .shards = 2, .zero_stage = 3, .tensor = 2, .ep = 2, .etp = 1}}) {
      Recipe recipe = expert_recipe(spec, 5);
      recipe.optimizer = {.name = "adamw", .lr = 1e-2, .max_norm = 0.5};
      run_thread_ranks(geometry.ranks(), {}, [&](std::unique_ptr<Communicator> world) {
        const RankThread prologue({.threads = 1});
        GeometryJob job(recipe, geometry, *world);
        for (int step = 1; step <= recipe.steps; ++step) (void)job.step(step);
        check_replicas(job.units, *job.optimizer, job.mesh, *world);
      });
    }
  }
}

}  // namespace
}  // namespace quatrain
