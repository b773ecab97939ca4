// SPDX-License-Identifier: Apache-2.0
// One rank's part of the model, as the walk and the books of ZeRO read it.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quatrain/cost/walk.h"
#include "quatrain/mesh/mesh.h"
#include "quatrain/spec/model_spec.h"
#include "quatrain/spec/stages.h"
#include "quatrain/spec/tensor_split.h"

namespace quatrain {

// local_parameters(), those that match no pattern marked as not trainable. Throws ConfigError for
// patterns that match nothing.
std::vector<LocalParameter> trained_parameters(const ModelSpec& model, const TensorSplit& split,
                                               const std::vector<std::string>& trainable);

// Its share of what is cut.
struct LocalSizes {
  std::int64_t heads, kv_heads, ffn, vocab;
  std::int64_t expert_ffn = 0, shared_ffn = 0;  // of an expert, of all shared ones
};
LocalSizes local_sizes(const ModelSpec& model, const TensorSplit& split);

// Of a layer with experts.
ExpertLoad expert_load(const ModelSpec& model, const WorkShape& shape);

// Whether each rank owns a run of the residual stream's rows.
bool cuts_rows(const TensorSplit& split);

// The layers of one of a rank's stages. Throws BugError for another's.
const StageLayers& layers_of(std::span<const StageLayers> stages, int stage);

// The ranks that share a matrix, alone.
Mesh tensor_mesh(const TensorSplit& split);

// Whether weight halves gather what they read once more. With selective recomputation the norms'
// outputs come back as the rows that this rank owns.
bool gathers_again(const WorkShape& shape);

}  // namespace quatrain
