// SPDX-License-Identifier: Apache-2.0
#include "quatrain/spec/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "quatrain/base/check.h"

namespace quatrain {
namespace {

bool holds(std::span<const StageLayers> stages, std::int64_t layer) {
  return std::any_of(stages.begin(), stages.end(),
                     [layer](const StageLayers& s) { return s.begin <= layer && layer < s.end; });
}

struct LayerParameters {
  std::vector<LocalParameter> dense, experts;
  bool trains_experts = false;  // here or elsewhere
};

UnitSpec unit_of(std::string name, std::vector<LocalParameter> parameters) {
  UnitSpec unit{std::move(name), std::move(parameters)};
  unit.trained = std::any_of(unit.parameters.begin(), unit.parameters.end(),
                             [](const LocalParameter& p) { return p.info.trainable; });
  return unit;
}

// What is held of each layer: the list says -1 for the embedding.
std::vector<LayerParameters> by_layer(std::vector<LocalParameter> list, std::int64_t blocks) {
  std::vector<LayerParameters> layers(static_cast<std::size_t>(blocks) + 2);
  for (LocalParameter& local : list) {
    LayerParameters& layer = layers[static_cast<std::size_t>(local.info.layer + 1)];
    const bool expert = local.info.expert >= 0;
    layer.trains_experts = layer.trains_experts || (expert && local.info.trainable);
    if (!local.held()) continue;
    (expert ? layer.experts : layer.dense).push_back(std::move(local));
  }
  return layers;
}

std::string unit_name(int layer, std::int64_t blocks) {
  if (layer == 0) return "embedding";
  return layer <= blocks ? fmt::format("layers.{}", layer - 1) : "head";
}

}  // namespace

std::vector<StageLayers> stage_layers(std::int64_t blocks, const std::vector<int>& stage_begin) {
  CHECK(!stage_begin.empty() && stage_begin.front() == 0, "no stage holds the first block");
  const auto last = stage_begin.size() - 1;
  std::vector<StageLayers> stages;
  for (std::size_t s = 0; s <= last; ++s) {
    const int begin = s == 0 ? 0 : stage_begin[s] + 1;
    const int end = s == last ? static_cast<int>(blocks) + 2 : stage_begin[s + 1] + 1;
    CHECK(begin <= end, "stage {} ends at block {}, ahead of its begin", s, end - 1);
    stages.push_back({static_cast<int>(s), begin, end});
  }
  return stages;
}

std::vector<StageLayers> stages_of_rank(const std::vector<StageLayers>& all,
                                        const std::vector<int>& rank_of_stage, int rank) {
  CHECK(all.size() == rank_of_stage.size(), "{} stages, {} of them placed", all.size(),
        rank_of_stage.size());
  std::vector<StageLayers> own;
  for (const StageLayers& stage : all) {
    if (rank_of_stage[static_cast<std::size_t>(stage.stage)] == rank) own.push_back(stage);
  }
  return own;
}

TiedCopy tied_copy(const ModelSpec& model, std::span<const StageLayers> stages) {
  const bool embedding = holds(stages, 0);
  const bool head = holds(stages, model.layers + 1);
  if (!model.tied || embedding == head) return TiedCopy::kNone;
  return embedding ? TiedCopy::kEmbedding : TiedCopy::kHead;
}

std::vector<LocalParameter> local_parameters(const ModelSpec& model, const TensorSplit& split,
                                             std::span<const StageLayers> stages) {
  return local_parameters(model, split,
                          [&](std::int64_t block) { return holds(stages, block + 1); });
}

std::vector<UnitSpec> unit_specs(const ModelSpec& model, const TensorSplit& split,
                                 const std::vector<std::string>& trainable,
                                 std::span<const StageLayers> stages) {
  // Patterns are those of the whole model.
  std::vector<LocalParameter> list =
      trainable.empty() ? local_parameters(model, split, stages) : local_parameters(model, split);
  if (!trainable.empty()) throw_if_any(set_trainable(list, trainable));
  const auto layers = by_layer(std::move(list), model.layers);
  const TiedCopy copy = tied_copy(model, stages);
  std::vector<UnitSpec> units;
  for (const StageLayers& stage : stages) {
    for (int layer = stage.begin; layer < stage.end; ++layer) {
      auto [parameters, experts, trains_experts] = layers[static_cast<std::size_t>(layer)];
      if (layer == 0 && copy == TiedCopy::kEmbedding) {
        units.push_back(unit_of(std::string(kTiedTable), {parameters.front()}));
        parameters.erase(parameters.begin());
        if (parameters.empty()) continue;
      }
      units.push_back(unit_of(unit_name(layer, model.layers), std::move(parameters)));
      if (experts.empty()) continue;
      units.push_back({unit_name(layer, model.layers) + ".experts", std::move(experts)});
      units.back().trained = trains_experts;
    }
  }
  if (copy == TiedCopy::kHead) {
    LocalParameter table = layers.front().dense.front();
    table.counted = false;
    units.push_back(unit_of(std::string(kTiedTable), {std::move(table)}));
  }
  return units;
}

}  // namespace quatrain
