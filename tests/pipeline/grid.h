// SPDX-License-Identifier: Apache-2.0
// The geometries of pipelines that tests run: schedules x ranks x families, and compositions with
// ZeRO, tensor and sequence parallelism, data ranks and recomputation.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "tests/tensor/grid.h"

namespace quatrain {

inline constexpr double kTight = 1e-12;  // of float64, relative

inline ModelSpec with_layers(ModelSpec spec, std::int64_t layers) {
  spec.layers = layers;
  if (!spec.window_layers.empty()) spec.window_layers.resize(static_cast<std::size_t>(layers));
  return spec;
}

// A schedule that the executor runs, and what it asks for.
struct RunSchedule {
  std::string name;
  int chunks = 1;
  int times_ranks = 1;  // fewest micro-batches a rank
};
inline std::vector<RunSchedule> run_schedules() {
  return {{"gpipe"},         {"1f1b"},
          {"eager-1f1b"},    {"interleaved-1f1b", 2},
          {"looped-bfs", 2}, {"zb-h1"},
          {"zb-h1-fused"},   {"zb-h2"},
          {"zb-auto"},       {"interleaved-zb1p", 2},
          {"zb-v", 2},       {"zb-v-auto", 2},
          {"v-half", 2},     {"v-min", 2},
          {"1f1b-v", 2},     {"dualpipe-v", 2, 2}};
}

// Every schedule x ranks x {tied GPT-2, Llama}, a block a stage.
inline std::vector<Case> schedule_grid(const std::vector<int>& pipelines, int steps) {
  std::vector<Case> all;
  for (const ModelSpec& spec : {tiny_gpt2(), tiny_llama()}) {
    for (const int ranks : pipelines) {
      for (const RunSchedule& schedule : run_schedules()) {
        const int m = std::max(4, ranks * schedule.times_ranks);
        all.push_back({{.spec = with_layers(spec, ranks * schedule.chunks),
                        .global_batch = m,
                        .steps = steps},
                       {.accumulation = m,
                        .schedule = schedule.name,
                        .pipeline = ranks,
                        .chunks = schedule.chunks}});
      }
    }
  }
  return all;
}

// Of four micro-batches a data rank: schedules x ZeRO x tensor and sequence parallelism x data
// ranks x recomputation, on up to 16 ranks; GPT-2 and Llama in turn.
inline std::vector<Case> composition_grid(int steps) {
  std::vector<Case> all;
  const std::vector<RunSchedule> schedules = {
      {"1f1b"}, {"interleaved-1f1b", 2}, {"zb-h1"}, {"zb-v", 2}};
  for (const int pipeline : {2, 4}) {
    for (const RunSchedule& schedule : schedules) {
      for (const int zero : {0, 1, 2, 3}) {
        for (const int tensor : {1, 2}) {
          for (const int shards : {1, 2}) {
            for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
              const ModelSpec& spec = all.size() % 3 == 0 ? tensor_llama() : tensor_gpt2();
              all.push_back({{.spec = with_layers(spec, pipeline * schedule.chunks),
                              .recompute = recompute,
                              .global_batch = 4 * shards,
                              .steps = steps},
                             {.shards = shards,
                              .zero_stage = zero,
                              .accumulation = 4,
                              .schedule = schedule.name,
                              .tensor = tensor,
                              .sequence_parallel = tensor > 1,
                              .pipeline = pipeline,
                              .chunks = schedule.chunks}});
            }
          }
        }
      }
    }
  }
  return all;
}

// One rank with the same micro-batches' sums: the same global batch.
inline Difference from_one_rank(const Case& c) {
  return difference(run_on_threads(c.recipe, c.geometry), one_rank(c.recipe));
}

}  // namespace quatrain
