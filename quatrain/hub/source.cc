// SPDX-License-Identifier: Apache-2.0
#include "quatrain/hub/source.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "quatrain/hub/weight_files.h"

namespace quatrain {
namespace {

constexpr std::string_view kExperts = ".experts.";

// Mixtral's blocks have another name there.
std::string name_in_v5(std::string name) {
  constexpr std::string_view kMixtral = ".block_sparse_moe.";
  const std::size_t at = name.find(kMixtral);
  return at == std::string::npos ? name : name.replace(at, kMixtral.size(), ".mlp.");
}

// An expert's matrix as rows of the layer's tensor, whose name is returned.
std::string fuse(HubPart& part) {
  const std::string& name = part.info.name;
  const bool down = name.ends_with("down_proj.weight") || name.ends_with("w2.weight");
  const bool up = name.ends_with("up_proj.weight") || name.ends_with("w3.weight");
  const std::int64_t rows = part.info.shape[0];
  const std::string before = name_in_v5(name.substr(0, name.find(kExperts) + kExperts.size()));
  part.info.hub.begin = part.info.expert * (down ? rows : 2 * rows) + (up ? rows : 0);
  return before + (down ? "down_proj" : "gate_up_proj");
}

}  // namespace

HubSources hub_sources(const ModelSpec& spec) {
  HubSources sources;
  std::map<std::string, std::size_t> place;
  for (const ParameterInfo& info : parameters(spec)) {
    const std::string& tensor = info.hub.tensor.empty() ? info.name : info.hub.tensor;
    const auto [found, is_new] = place.emplace(tensor, sources.size());
    if (is_new) sources.emplace_back(tensor, HubParts{});
    sources[found->second].second.push_back({info});
  }
  return sources;
}

HubSources hub_sources(const Model& model) {
  std::map<std::string_view, Param*> here;
  for (const auto& unit : model.units()) {
    for (Param& param : unit->params()) here.emplace(param.info.name, &param);
  }
  HubSources sources = hub_sources(model.spec());
  for (auto& [tensor, parts] : sources) {
    for (HubPart& part : parts) {
      const auto param = here.find(part.info.name);
      if (param != here.end()) part.param = param->second;
    }
  }
  return sources;
}

HubSources fused_as_in(HubSources sources, const WeightFiles& files) {
  const auto& names = files.names();
  const bool fused = std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name.ends_with(".experts.gate_up_proj");
  });
  if (!fused) return sources;
  std::int64_t experts = 0;
  for (const auto& [tensor, parts] : sources) {
    experts = std::max(experts, parts.front().info.expert + 1);
  }
  HubSources out;
  std::map<std::string, std::size_t> place;
  for (auto& [tensor, parts] : sources) {
    for (HubPart& part : parts) {
      const bool of_expert = part.info.expert >= 0;
      const std::string name = of_expert ? fuse(part) : name_in_v5(tensor);
      if (of_expert) part.blocks = experts;
      const auto [found, is_new] = place.emplace(name, out.size());
      if (is_new) out.emplace_back(name, HubParts{});
      out[found->second].second.push_back(std::move(part));
    }
  }
  return out;
}

std::vector<std::int64_t> file_shape(const HubParts& parts) {
  std::vector<std::int64_t> shape = parts.front().info.shape;
  const ParameterInfo& last = parts.back().info;
  shape[0] = last.hub.begin + last.shape[0];
  if (const std::int64_t blocks = parts.back().blocks; blocks > 0) {
    return {blocks, shape[0] / blocks, shape[1]};
  }
  if (last.hub.transposed) std::reverse(shape.begin(), shape.end());
  return shape;
}

}  // namespace quatrain
