// SPDX-License-Identifier: Apache-2.0
// A model's weights as a Hugging Face folder.
#include <ATen/ops/cat.h>

#include "quatrain/checkpoint/safetensors.h"
#include "quatrain/hub/export.h"
#include "quatrain/hub/folder_files.h"
#include "quatrain/hub/hub.h"
#include "quatrain/hub/source.h"
#include "quatrain/hub/weight_files.h"

namespace quatrain {
namespace fs = std::filesystem;
namespace {

at::Tensor file_tensor(const HubParts& parts, const WholeWeights& weights) {
  std::vector<at::Tensor> pieces;
  for (const HubPart& part : parts) pieces.push_back(weights.at(part.info.name));
  const at::Tensor whole = pieces.size() == 1 ? pieces[0] : at::cat(pieces);
  return parts.front().info.hub.transposed ? whole.t() : whole;
}

}  // namespace

void save_weights(const Model& model, const fs::path& folder) {
  WholeWeights weights;
  for (const auto& unit : model.units()) {
    for (const Param& param : unit->params()) weights.emplace(param.info.name, param.value);
  }
  save_weights(model, weights, folder);
}

void save_weights(const Model& model, const WholeWeights& weights, const fs::path& folder) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [name, parts] : hub_sources(model)) {
    tensors.emplace_back(name, file_tensor(parts, weights));
  }
  clear_folder(folder);
  write_safetensors(folder / kWeightsFile, tensors, {{"format", "pt"}});
  write_hub_config(model.spec(), model.dtype(), folder);
}

}  // namespace quatrain
