// SPDX-License-Identifier: Apache-2.0
// The tensors of a folder with the experts of each layer in two, for tests: names, order and shapes
// of transformers v5's modeling_mixtral.py, modeling_qwen3_moe.py and modeling_deepseek_v3.py.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/spec/model_spec.h"

namespace quatrain::testing {

using Tensors = std::map<std::string, at::Tensor>;

// All tensors of no expert; Mixtral's blocks are `mlp` there.
inline Tensors without_experts(const Tensors& tensors) {
  constexpr std::string_view kMixtral = "block_sparse_moe";
  Tensors out;
  for (const auto& [name, tensor] : tensors) {
    if (name.find(".experts.") != std::string::npos) continue;
    std::string in = name;
    const auto at = in.find(kMixtral);
    if (at != std::string::npos) in.replace(at, kMixtral.size(), "mlp");
    out[in] = tensor;
  }
  return out;
}

inline Tensors fused_experts(const Tensors& tensors, const ModelSpec& spec) {
  Tensors out = without_experts(tensors);
  const bool mixtral = spec.family == Family::kMixtral;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    if (!spec.layer_is_sparse(layer)) continue;
    std::vector<at::Tensor> gate_up;
    std::vector<at::Tensor> down;
    for (std::int64_t e = 0; e < spec.experts->num_experts; ++e) {
      const std::string in = fmt::format("model.layers.{}.{}.experts.{}.", layer,
                                         mixtral ? "block_sparse_moe" : "mlp", e);
      const auto of = [&](const char* name) { return tensors.at(in + name + ".weight"); };
      gate_up.push_back(
          at::cat({of(mixtral ? "w1" : "gate_proj"), of(mixtral ? "w3" : "up_proj")}));
      down.push_back(of(mixtral ? "w2" : "down_proj"));
    }
    const std::string in = fmt::format("model.layers.{}.mlp.experts.", layer);
    out[in + "gate_up_proj"] = at::stack(gate_up);
    out[in + "down_proj"] = at::stack(down);
  }
  return out;
}

}  // namespace quatrain::testing
