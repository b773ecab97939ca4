// SPDX-License-Identifier: Apache-2.0
// An export read back: two copies of each layer run side by side, one with the checkpoint's values,
// one with the files'.
#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include <algorithm>

#include "quatrain/base/error.h"
#include "quatrain/hub/export.h"
#include "quatrain/hub/hub.h"
#include "quatrain/hub/match.h"
#include "quatrain/hub/source.h"
#include "quatrain/hub/weight_files.h"

namespace quatrain {
namespace fs = std::filesystem;
namespace {

constexpr double kTolerance = 1e-5;  // of the largest value of a layer's output
constexpr std::int64_t kPromptTokens = 16;

bool runs_here(const ModelSpec& spec) { return !spec.experts && !spec.latent; }

Pass fixed_prompt(const ModelSpec& spec) {
  const std::int64_t length = std::min(kPromptTokens, spec.max_positions);
  Pass pass;
  pass.positions_BT = at::arange(length, at::kLong).unsqueeze(0);
  pass.tokens_BT = pass.positions_BT.mul(7).add(1).remainder(spec.vocab);
  pass.mode = Mode::kDecode;
  return pass;
}

// The layers of a model, each with values only while it runs; a tied head needs the embedding's.
class LayerRow {
 public:
  LayerRow(const ModelSpec& spec, at::ScalarType dtype)
      : model_(spec, {.dtype = dtype}), sources_(hub_sources(model_)), pass_(fixed_prompt(spec)) {}

  std::size_t size() const { return model_.layers().size(); }
  std::string name(std::size_t layer) const {
    std::string last;
    for (const auto& unit : model_.units()) {
      if (layer_of(*unit) == layer) last = unit->name();
    }
    return last;
  }

  // `fill(tensor, parts)`: the values of a file tensor's parts.
  template <class Fill>
  at::Tensor forward(std::size_t layer, const at::Tensor& x, const Fill& fill) {
    for (const auto& unit : model_.units()) {
      if (layer_of(*unit) == layer) fill_unit(*unit, fill);
    }
    Stash stash = Stash::discarding();
    at::Tensor y = model_.layers()[layer]->forward(layer == 0 ? pass_.tokens_BT : x, pass_, stash);
    for (const auto& unit : model_.units()) {
      if (layer > 0 && layer_of(*unit) == layer) unit->set_values(at::Tensor());
    }
    return y;
  }

 private:
  // A tied table is a unit of its own beside the rest of the embedding.
  static std::size_t layer_of(const ParamUnit& unit) {
    return static_cast<std::size_t>(unit.params().front().info.layer + 1);
  }

  template <class Fill>
  void fill_unit(ParamUnit& unit, const Fill& fill) {
    unit.allocate(false);
    const auto params = unit.params();
    for (const auto& [tensor, parts] : sources_) {
      const Param* first = parts.front().param;
      if (first >= params.data() && first < params.data() + params.size()) fill(tensor, parts);
    }
  }

  Model model_;
  HubSources sources_;
  Pass pass_;
};

at::ScalarType compute_dtype(const CheckpointWeights& weights, const ModelSpec& spec) {
  const at::ScalarType dtype = weights.dtype(parameters(spec).front().name);
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

std::string layer_fault(CheckpointWeights& weights, const ModelSpec& spec, const WeightFiles& files,
                        const ModelSpec& exported, const ExportOptions& options) {
  const at::ScalarType dtype = compute_dtype(weights, spec);
  LayerRow native(spec, dtype);
  LayerRow again(exported, dtype);
  const auto from_checkpoint = [&](const std::string&, const HubParts& parts) {
    for (const HubPart& part : parts) {
      const at::ScalarType saved = export_dtype(weights, part.info.name, options);
      part.param->value.copy_(weights.rows(part.info, 0, part.info.shape[0], saved));
    }
  };
  const auto from_files = [&](const std::string& tensor, const HubParts& parts) {
    fill_from_file(parts, files, tensor);
  };
  at::Tensor x;
  at::Tensor y;
  for (std::size_t i = 0; i < native.size(); ++i) {
    x = native.forward(i, x, from_checkpoint);
    y = again.forward(i, y, from_files);
    const double largest = x.abs().max().to(at::kDouble).item<double>();
    const double difference = x.sub(y).abs().max().to(at::kDouble).item<double>();
    if (difference <= kTolerance * largest) continue;  // false for NaN
    return fmt::format("{} is the first layer whose output differs: by {:.3g} of at most {:.3g}",
                       native.name(i), difference, largest);
  }
  return "";
}

std::string tensor_fault(CheckpointWeights& weights, const HubSources& sources,
                         const WeightFiles& files, const ExportOptions& options) {
  for (const auto& [name, parts] : sources) {
    at::Tensor tensor = files.tensor(name);
    if (parts.front().info.hub.transposed) tensor = tensor.t();
    for (const HubPart& part : parts) {
      const at::ScalarType dtype = export_dtype(weights, part.info.name, options);
      const at::Tensor rows = tensor.narrow(0, part.info.hub.begin, part.info.shape[0]);
      const bool same = rows.scalar_type() == dtype &&
                        rows.equal(weights.rows(part.info, 0, part.info.shape[0], dtype));
      if (!same) return fmt::format("{} differs from {}", name, part.info.name);
    }
  }
  return "";
}

}  // namespace

std::string export_fault(CheckpointWeights& weights, const ModelSpec& spec, const fs::path& folder,
                         const ExportOptions& options) {
  try {
    const ModelSpec exported = read_hub_spec(folder);
    const WeightFiles files(folder);
    const HubSources sources = hub_sources(exported);
    const LoadOptions all;
    const HubMatch match(exported, sources, files, all);
    if (runs_here(spec)) {
      std::string fault = layer_fault(weights, spec, files, exported, options);
      if (!fault.empty()) return fault;
    }
    return tensor_fault(weights, sources, files, options);
  } catch (const DataError& error) {
    return error.what();
  } catch (const ConfigError& error) {
    return error.what();
  }
}

}  // namespace quatrain
