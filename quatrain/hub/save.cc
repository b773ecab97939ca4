// SPDX-License-Identifier: Apache-2.0
// A model's weights as a Hugging Face folder.
#include <ATen/ops/cat.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <system_error>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/base/text.h"
#include "quatrain/checkpoint/safetensors.h"
#include "quatrain/hub/hub.h"
#include "quatrain/hub/source.h"
#include "quatrain/hub/weight_files.h"
#include "quatrain/spec/model_io.h"

namespace quatrain {
namespace fs = std::filesystem;
namespace {

at::Tensor file_tensor(const HubParts& parts, const WholeWeights& weights) {
  std::vector<at::Tensor> pieces;
  for (const HubPart& part : parts) pieces.push_back(weights.at(part.info.name));
  const at::Tensor whole = pieces.size() == 1 ? pieces[0] : at::cat(pieces);
  return parts.front().info.hub.transposed ? whole.t() : whole;
}

std::string_view dtype_key(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return "bfloat16";
  return dtype == at::kDouble ? "float64" : "float32";
}

void remove_stale_shards(const fs::path& folder) {
  fs::remove(folder / kIndexFile);
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (glob_match("model-*-of-*.safetensors", entry.path().filename().string())) {
      fs::remove(entry.path());
    }
  }
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
  auto config = nlohmann::json::parse(to_hub_json(model.spec()));
  config["torch_dtype"] = dtype_key(model.dtype());
  try {
    fs::create_directories(folder);
    fs::remove(folder / "config.json");
    remove_stale_shards(folder);
  } catch (const fs::filesystem_error& error) {
    throw StorageError(fmt::format("{}: {}", folder.string(), error.code().message()));
  }
  write_safetensors(folder / kWeightsFile, tensors, {{"format", "pt"}});
  write_file_atomically(folder / "config.json", config.dump(2) + "\n");
}

}  // namespace quatrain
