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
  Param* param = nullptr;  // null: on a rank of another stage, or of no model
};
// Parameters that lie in one file tensor, in the order of their rows: all in one unit.
using HubParts = std::vector<HubPart>;
// Of the whole model, in its order, the token embedding first.
using HubSources = std::vector<std::pair<std::string, HubParts>>;
HubSources hub_sources(const ModelSpec& spec);  // without Params
HubSources hub_sources(const Model& model);

// The file tensor's shape: rows of all parts, [in, out] when transposed.
std::vector<std::int64_t> file_shape(const HubParts& parts);

// The values of parts that are here (=), each of this rank's piece, from the tensor `name`.
void fill_from_file(const HubParts& parts, const WeightFiles& files, const std::string& name);

}  // namespace quatrain
