// SPDX-License-Identifier: Apache-2.0
// From a ModelSpec to units and layers: the one path of all families.
#pragma once
#include <memory>
#include <vector>

#include "quatrain/model/model.h"
#include "quatrain/nn/expert_parallel.h"
#include "quatrain/nn/layer.h"

namespace quatrain {

using Units = std::vector<std::unique_ptr<ParamUnit>>;

// unit_specs() of these stages.
Units build_units(const ModelSpec& spec, const BuildOptions& options,
                  const std::vector<StageLayers>& stages, const TensorSplit& split);
// The stages' layers over those units (borrowed, as `ranks` are). Throws ConfigError for
// families that have no blocks yet.
std::vector<std::unique_ptr<Layer>> build_layers(const ModelSpec& spec, const BuildOptions& options,
                                                 const std::vector<StageLayers>& stages,
                                                 const Units& units, const ModelRanks& ranks);

}  // namespace quatrain
