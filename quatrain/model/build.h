// SPDX-License-Identifier: Apache-2.0
// From a ModelSpec to units and layers: the one path of all families.
#pragma once
#include <memory>
#include <vector>

#include "quatrain/model/model.h"
#include "quatrain/nn/layer.h"

namespace quatrain {

// One unit for the embedding, each block and the head, in the order of parameters(spec).
std::vector<std::unique_ptr<ParamUnit>> build_units(const ModelSpec& spec,
                                                    const BuildOptions& options,
                                                    const TensorParallel& tp);
// Layers over those units (borrowed, as `tp` is). Throws ConfigError for families that have no
// blocks yet.
std::vector<std::unique_ptr<Layer>> build_layers(
    const ModelSpec& spec, const BuildOptions& options,
    const std::vector<std::unique_ptr<ParamUnit>>& units, const TensorParallel& tp);

}  // namespace quatrain
