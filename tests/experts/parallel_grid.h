// SPDX-License-Identifier: Apache-2.0
// The geometries of expert parallelism: ep x etp x tp x data ranks x ZeRO x pipelines x
// recomputation, foldings among them: experts whole under tp (etp 1), wider than it (etp 2 at tp
// 1), ep over data ranks, over tp and over both.
#pragma once
#include <vector>

#include "tests/experts/grid.h"

namespace quatrain {

// Of eight experts, so that ep 8 holds one each.
inline std::vector<ModelSpec> many_experts() {
  std::vector<ModelSpec> all = expert_models();
  for (ModelSpec& spec : all) spec.experts->num_experts = 8;
  return all;
}

// Every combination that ranks allow, on up to 16.
inline std::vector<Geometry> expert_geometries() {
  const std::vector<RunSchedule> schedules = {
      {"1f1b", 0}, {"1f1b"}, {"interleaved-1f1b", 2}, {"zb-v", 2}};  // 0 chunks: no pipeline
  std::vector<Geometry> all;
  for (const RunSchedule& schedule : schedules) {
    for (const int data : {1, 2, 4, 8}) {
      for (const int tensor : {1, 2}) {
        for (const int ep : {1, 2, 4, 8}) {
          for (const int etp : {1, 2}) {
            for (const int zero : {0, 1, 2, 3}) {
              const int pipeline = schedule.chunks == 0 ? 1 : 2;
              const bool as_dense = ep == 1 && etp == tensor;
              if (as_dense || data * tensor % (ep * etp) != 0) continue;
              if (pipeline * data * tensor > 16) continue;
              const int replicas = data >= 4 && all.size() % 3 == 0 ? 2 : 1;
              all.push_back({.replicas = replicas,
                             .shards = data / replicas,
                             .zero_stage = zero,
                             .accumulation = pipeline * (data >= 4 ? 1 : 2),
                             .schedule = schedule.name,
                             .tensor = tensor,
                             .sequence_parallel = all.size() % 2 == 0,
                             .pipeline = pipeline,
                             .chunks = std::max(schedule.chunks, 1),
                             .ep = ep,
                             .etp = etp,
                             .ep_chunks = 1 + static_cast<int>(all.size() % 3)});
            }
          }
        }
      }
    }
  }
  return all;
}

// Balance by sequence, by global batch and so again, with and without jitter.
inline RouterTraining router_in_turn(std::size_t turn) {
  RouterTraining router;
  if (turn % 4 >= 2) router.balance = kernels::BalanceOver::kGlobalBatch;
  if (turn % 5 == 0) router.jitter = 0.1;
  return router;
}

// Each with every kind of recomputation, models in turn.
inline std::vector<Case> expert_parallel_grid(int steps) {
  const OptimizerOptions adamw{.name = "adamw", .lr = 1e-3, .weight_decay = 0.1, .max_norm = 0.5};
  const std::vector<ModelSpec> models = many_experts();
  std::vector<Case> all;
  for (const Geometry& geometry : expert_geometries()) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      const std::size_t turn = all.size() + all.size() / models.size();
      Recipe recipe = expert_recipe(models[turn % models.size()], steps);
      recipe.global_batch = 16;
      recipe.recompute = recompute;
      recipe.router = router_in_turn(all.size());
      if (all.size() % 3 == 0) recipe.optimizer = adamw;
      if (geometry.chunks > 1) recipe.spec = with_layers(recipe.spec, 4);
      all.push_back({recipe, geometry});
    }
  }
  return all;
}

}  // namespace quatrain
