// SPDX-License-Identifier: Apache-2.0
// Names of the model vocabulary's enumerations, and the per-layer rules of a ModelSpec.
#include "quatrain/spec/model_spec.h"

#include <algorithm>
#include <array>

namespace quatrain {
namespace {

constexpr std::array kDtypes{Dtype::kFloat32, Dtype::kBFloat16, Dtype::kFloat64};
constexpr std::array kFamilies{Family::kGpt2,      Family::kLlama,   Family::kQwen2,
                               Family::kQwen3,     Family::kMixtral, Family::kQwen3Moe,
                               Family::kDeepseekV3};

}  // namespace

std::string_view name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return "float32";
    case Dtype::kBFloat16:
      return "bfloat16";
    case Dtype::kFloat64:
      return "float64";
  }
  return "";
}

std::optional<Dtype> dtype_from_name(std::string_view text) {
  for (Dtype dtype : kDtypes) {
    if (name(dtype) == text) return dtype;
  }
  return std::nullopt;
}

std::string_view name(Family family) {
  switch (family) {
    case Family::kGpt2:
      return "gpt2";
    case Family::kLlama:
      return "llama";
    case Family::kQwen2:
      return "qwen2";
    case Family::kQwen3:
      return "qwen3";
    case Family::kMixtral:
      return "mixtral";
    case Family::kQwen3Moe:
      return "qwen3_moe";
    case Family::kDeepseekV3:
      return "deepseek_v3";
  }
  return "";
}

std::optional<Family> family_from_name(std::string_view text) {
  for (Family family : kFamilies) {
    if (name(family) == text) return family;
  }
  return std::nullopt;
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (Family family : kFamilies) names.emplace_back(name(family));
  return names;
}

bool ModelSpec::layer_is_sparse(std::int64_t layer) const {
  if (!experts || layer < experts->first_dense) return false;
  const auto& dense = experts->dense_layers;
  if (std::find(dense.begin(), dense.end(), layer) != dense.end()) return false;
  return (layer + 1) % experts->sparse_step == 0;
}

std::int64_t ModelSpec::layer_window(std::int64_t layer) const {
  if (window == 0) return 0;
  if (window_layers.empty()) return window;
  const auto index = static_cast<std::size_t>(layer);
  return index < window_layers.size() && window_layers[index] ? window : 0;
}

}  // namespace quatrain
