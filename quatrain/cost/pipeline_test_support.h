// SPDX-License-Identifier: Apache-2.0
// Plans of pipelines over the small models of test_models.h.
#pragma once
#include <string>
#include <vector>

#include "quatrain/cost/lower.h"
#include "quatrain/cost/test_models.h"
#include "quatrain/cost/zero.h"

namespace quatrain {

// How stages lie on ranks, by a schedule that lays them so.
struct PipelineLayout {
  std::string schedule = "1f1b";
  int chunks = 1;
};
inline const std::vector<PipelineLayout> kLayouts = {
    {"1f1b", 1}, {"interleaved-1f1b", 2}, {"looped-bfs", 3}, {"zb-v", 2}};

inline ModelSpec with_layers(ModelSpec model, std::int64_t layers) {
  model.layers = layers;
  return model;
}

inline ModelSpec tied(ModelSpec model) {
  model.tied = true;
  return model;
}

inline std::vector<ModelSpec> models_of(std::int64_t layers) {
  return {with_layers(gpt2_like(), layers), with_layers(llama_like(), layers),
          with_layers(tied(llama_like()), layers)};
}

inline int& degree(Plan& plan, Axis axis) { return plan.degrees[static_cast<std::size_t>(axis)]; }

inline Plan pipeline_plan(const ModelSpec& model, int pp, const PipelineLayout& layout = {},
                          int microbatches = 8) {
  Plan plan;
  degree(plan, Axis::kPp) = pp;
  plan.schedule = layout.schedule;
  plan.chunks = layout.chunks;
  plan.num_microbatches = microbatches;
  plan.microbatch_size = 2;
  plan.seq_len = 16;
  plan.stage_begin = first_layers(even_layers(model.layers, pp * layout.chunks));
  return plan;
}

// The shape of each pipeline rank, at the first place along all other axes.
inline std::vector<ZeroShape> shapes_of(const ModelSpec& model, const Plan& plan,
                                        const std::vector<std::string>& trainable = {}) {
  const Mesh mesh(plan.degrees, plan.axis_order, 0);
  const std::vector<int> rank_of_stage = plan_schedule(plan).rank_of_stage.front();
  std::vector<ZeroShape> shapes;
  for (const int rank : mesh.group(Axis::kPp)) {
    shapes.push_back(zero_shape(model, plan, trainable, rank, rank_of_stage));
  }
  return shapes;
}

}  // namespace quatrain
