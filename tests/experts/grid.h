// SPDX-License-Identifier: Apache-2.0
// The geometries on which models with experts run: families x data ranks x ZeRO x tensor and
// sequence parallelism x pipelines x recomputation. Biases move, and both router losses count.
#pragma once
#include <gtest/gtest.h>

#include <vector>

#include "tests/pipeline/grid.h"

namespace quatrain {

inline void expect_one_rank(const Case& c) {
  SCOPED_TRACE(c.name());
  const Difference worst = from_one_rank(c);
  EXPECT_LE(worst.max_rel, 1e-12) << worst.where;
}

// Two blocks; layer 0 of all but Mixtral is dense.
inline std::vector<ModelSpec> expert_models() { return tensor_mixtures(); }

inline Recipe expert_recipe(const ModelSpec& spec, int steps) {
  Recipe recipe{.spec = spec, .global_batch = 8, .steps = steps};
  recipe.router_z_loss = 0.01;
  recipe.router_bias_rate = spec.experts->selection_bias ? 0.05 : 0.0;
  return recipe;
}

inline std::vector<Case> expert_grid(int steps) {
  const std::vector<RunSchedule> schedules = {
      {"1f1b", 0}, {"1f1b"}, {"interleaved-1f1b", 2}, {"zb-v", 2}};  // 0 chunks: no pipeline
  const OptimizerOptions adamw{.name = "adamw", .lr = 1e-3, .weight_decay = 0.1, .max_norm = 0.5};
  std::vector<Case> all;
  for (const ModelSpec& spec : expert_models()) {
    for (const RunSchedule& schedule : schedules) {
      for (const int shards : {1, 2, 4}) {
        for (const int zero : {0, 1, 2, 3}) {
          for (const int tensor : {1, 2, 4}) {
            for (const Recompute recompute :
                 {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
              const int pipeline = schedule.chunks == 0 ? 1 : 2;
              if (pipeline * shards * tensor > 16) continue;
              Recipe recipe = expert_recipe(spec, steps);
              recipe.recompute = recompute;
              if (all.size() % 3 == 0) recipe.optimizer = adamw;
              if (schedule.chunks > 1) recipe.spec = with_layers(spec, 4);
              all.push_back({recipe,
                             {.shards = shards,
                              .zero_stage = zero,
                              .accumulation = pipeline * (shards == 4 ? 1 : 2),
                              .schedule = schedule.name,
                              .tensor = tensor,
                              .sequence_parallel = all.size() % 2 == 0,
                              .pipeline = pipeline,
                              .chunks = std::max(schedule.chunks, 1)}});
            }
          }
        }
      }
    }
  }
  return all;
}

}  // namespace quatrain
