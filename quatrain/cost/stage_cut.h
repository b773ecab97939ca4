// SPDX-License-Identifier: Apache-2.0
// Where a model is cut into pipeline stages, and what each stage then is. The embedding runs with
// the first stage's blocks and the head with the last one's; by count alone the stage with a large
// head sets the pace of all others (docs/cost_model.md). Cuts by count and by hand are
// even_layers() and parallel.layers_per_stage; first_layers() makes Plan::stage_begin of any.
#pragma once
#include <cstdint>
#include <vector>

#include "quatrain/base/units.h"
#include "quatrain/cost/walk.h"
#include "quatrain/spec/model_spec.h"
#include "quatrain/spec/run_config.h"

namespace quatrain {

// Blocks of each stage, one or more (one stage takes any number). The slowest stage is as fast as
// any cut allows, then the second slowest, and so on, by the FLOPs of all three passes in `units`
// (walk()'s: a recomputed forward counts). Of cuts that tie, the one with fewer blocks in the
// first stage, then in the second, ...: early stages hold the activations of the most
// micro-batches. Throws ConfigError for fewer blocks than stages. O(stages^2 blocks^2) at most.
std::vector<std::int64_t> balanced_layers(const std::vector<UnitCost>& units, int stages);

// Fills an empty parallel.layers_per_stage of a resolved configuration with more than one stage.
// All ranks get the same cut. Throws as walk() and balanced_layers() do.
void balance_stages(RunConfig& config);

// One stage, on one rank of tp.
struct StageCost {
  std::int64_t begin = 0, end = 0;  // its blocks
  std::int64_t parameters = 0;      // stored and counted once, a tied table with the first stage
  std::int64_t table_copy = 0;      // a tied table that the last stage keeps live beside it
  Flops forward{}, backward_input{}, backward_weight{};  // of one micro-batch
  std::int64_t live_parameters() const { return parameters + table_copy; }
  Flops flops() const { return forward + backward_input + backward_weight; }
};
// Of a plan's `stage_begin`. `rank_of_stage`: a replica's row of Schedule::rank_of_stage; where the
// first and the last stage share a rank, they share a tied table. Throws as walk() does.
std::vector<StageCost> stage_costs(const ModelSpec& model, const WorkShape& shape,
                                   const std::vector<int>& stage_begin,
                                   const std::vector<int>& rank_of_stage);

}  // namespace quatrain
