// SPDX-License-Identifier: Apache-2.0
#include "quatrain/hub/source.h"

#include <algorithm>
#include <map>

namespace quatrain {

HubSources hub_sources(const Model& model) {
  HubSources sources;
  std::map<std::string, std::size_t> place;
  for (const auto& unit : model.units()) {
    for (Param& param : unit->params()) {
      const ParameterInfo& info = param.info;
      const std::string& tensor = info.hub.tensor.empty() ? info.name : info.hub.tensor;
      const auto [found, is_new] = place.emplace(tensor, sources.size());
      if (is_new) sources.emplace_back(tensor, HubParts{});
      sources[found->second].second.push_back(&param);
    }
  }
  return sources;
}

std::vector<std::int64_t> file_shape(const HubParts& parts) {
  std::vector<std::int64_t> shape = parts.front()->info.shape;
  const Param& last = *parts.back();
  shape[0] = last.info.hub.begin + last.info.shape[0];
  if (last.info.hub.transposed) std::reverse(shape.begin(), shape.end());
  return shape;
}

}  // namespace quatrain
