// SPDX-License-Identifier: Apache-2.0
#include "quatrain/hub/source.h"

#include <algorithm>
#include <map>
#include <string_view>

namespace quatrain {

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

std::vector<std::int64_t> file_shape(const HubParts& parts) {
  std::vector<std::int64_t> shape = parts.front().info.shape;
  const ParameterInfo& last = parts.back().info;
  shape[0] = last.hub.begin + last.shape[0];
  if (last.hub.transposed) std::reverse(shape.begin(), shape.end());
  return shape;
}

}  // namespace quatrain
