// SPDX-License-Identifier: Apache-2.0
// Which parameters each tensor of a Hugging Face file is made of.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "quatrain/model/model.h"

namespace quatrain {

class WeightFiles;

struct HubPart {
  ParameterInfo info;
  Param* param = nullptr;   // null: on a rank of another stage, or of no model
  std::int64_t blocks = 0;  // A of a file tensor [A, B, in], whose rows are A * B; 0: a matrix
};
// Parameters that lie in one file tensor, in the order of their rows: all in one unit.
using HubParts = std::vector<HubPart>;
// Of the whole model, in its order, the token embedding first.
using HubSources = std::vector<std::pair<std::string, HubParts>>;
HubSources hub_sources(const ModelSpec& spec);  // without Params
HubSources hub_sources(const Model& model);

// The sources as the files name them: where those hold the experts of a layer in two tensors,
// gate_up_proj [E, 2F, D] and down_proj [E, D, F], as transformers v5 has them in memory, these are
// the sources, each of all experts.
HubSources fused_as_in(HubSources sources, const WeightFiles& files);

// The file tensor's shape: rows of all parts, [in, out] when transposed.
std::vector<std::int64_t> file_shape(const HubParts& parts);

// Rows [begin, end) of a part that is not transposed, from the tensor `name`.
at::Tensor file_rows(const HubPart& part, const WeightFiles& files, const std::string& name,
                     std::int64_t begin, std::int64_t end);

// The values of parts (=), which are all here, each of this rank's piece, from the tensor `name`.
void fill_from_file(const HubParts& parts, const WeightFiles& files, const std::string& name);

}  // namespace quatrain
