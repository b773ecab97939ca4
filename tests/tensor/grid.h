// SPDX-License-Identifier: Apache-2.0
// The geometries of tensor parallelism that tests run: families x degrees x sequence parallelism x
// ZeRO x data ranks x recomputation x optimizers.
#pragma once
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "tests/zero/geometry_run.h"

namespace quatrain {

// Eight query heads, so that eight ranks have one each.
inline ModelSpec tensor_llama() {
  ModelSpec spec = tiny_llama();
  spec.heads = 8;
  spec.kv_heads = 2;
  return spec;
}
inline ModelSpec tensor_gpt2() {
  ModelSpec spec = tiny_gpt2();
  spec.heads = spec.kv_heads = 8;
  return spec;
}
inline ModelSpec tensor_qwen2() {
  ModelSpec spec = tiny_qwen2();
  spec.heads = 8;
  return spec;
}
inline ModelSpec tensor_qwen3() {
  ModelSpec spec = tiny_qwen3();
  spec.heads = 8;
  return spec;
}
inline std::vector<ModelSpec> tensor_models() {
  return {tensor_gpt2(), tensor_llama(), tensor_qwen2(), tensor_qwen3()};
}

inline std::vector<ModelSpec> tensor_mixtures() {
  std::vector<ModelSpec> all = tiny_mixtures();
  for (ModelSpec& spec : all) {
    spec.heads = 8;
    if (spec.latent) spec.kv_heads = 8;
  }
  return all;
}

struct Case {
  Recipe recipe;
  Geometry geometry;
  std::string name() const {
    return recipe.spec.name + ", " + recipe.optimizer.name + ", recompute " +
           std::string(quatrain::name(recipe.recompute)) + ", " + geometry.name();
  }
};

inline std::vector<Case> full_grid() {
  const OptimizerOptions sgd{.name = "sgd", .lr = 0.1, .weight_decay = 0.0, .max_norm = 0.0};
  const OptimizerOptions adamw{.name = "adamw", .lr = 1e-3, .weight_decay = 0.1, .max_norm = 0.5};
  std::vector<Case> all;
  for (const ModelSpec& spec : tensor_models()) {
    for (const OptimizerOptions& optimizer : {sgd, adamw}) {
      for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
        Recipe recipe{.spec = spec,
                      .recompute = recompute,
                      .optimizer = optimizer,
                      .global_batch = 4,
                      .steps = 5};
        for (const int degree : {2, 4, 8}) {
          for (const bool sequence : {false, true}) {
            for (const int zero : {0, 1, 3}) {
              for (const int shards : {1, 2}) {
                all.push_back({recipe,
                               {.shards = shards,
                                .zero_stage = zero,
                                .tensor = degree,
                                .sequence_parallel = sequence}});
              }
            }
          }
        }
      }
    }
  }
  return all;
}

// `count` of them, the same in every run.
inline std::vector<Case> sample(std::vector<Case> all, std::size_t count) {
  std::mt19937 engine(20261);
  for (std::size_t i = 0; i < count && i + 1 < all.size(); ++i) {
    std::swap(all[i], all[i + engine() % (all.size() - i)]);
  }
  if (all.size() > count) all.resize(count);
  return all;
}

inline RunResult one_rank(const Recipe& recipe) { return run_on_threads(recipe, {}); }

}  // namespace quatrain
