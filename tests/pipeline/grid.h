// SPDX-License-Identifier: Apache-2.0
// The geometries of pipelines that tests run: schedules x ranks x families, and compositions with
// ZeRO, tensor and sequence parallelism, data ranks and recomputation.
#pragma once
#include <string>
#include <vector>

#include "tests/tensor/grid.h"

namespace quatrain {

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
  return {{"gpipe"},
          {"1f1b"},
          {"eager-1f1b"},
          {"interleaved-1f1b", 2},
          {"looped-bfs", 2},
          {"zb-h1"},
          {"zb-h2"},
          {"zb-auto"},
          {"interleaved-zb1p", 2},
          {"zb-v", 2},
          {"zb-v-auto", 2},
          {"v-half", 2},
          {"v-min", 2},
          {"1f1b-v", 2},
          {"dualpipe-v", 2, 2}};
}

}  // namespace quatrain
