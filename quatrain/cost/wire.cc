// SPDX-License-Identifier: Apache-2.0
#include "quatrain/cost/wire.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "quatrain/cost/local.h"
#include "quatrain/mesh/group_name.h"
#include "quatrain/mesh/placement.h"
#include "quatrain/schedule/action_index.h"

namespace quatrain {
namespace {

// Sums the layers' collectives along a row.
class RowWire {
 public:
  RowWire(const ModelSpec& model, WorkShape shape, std::span<const StageLayers> stages)
      : mesh_(tensor_mesh(shape.split)), stages_(stages) {
    shape.fused_backward = true;
    fused_ = walk(model, shape, stages);
    shape.fused_backward = false;
    deferred_ = walk(model, shape, stages);
  }

  WireCosts run(const std::vector<Action>& row) && {
    std::map<std::tuple<ActionKind, int, int>, std::int64_t> times;  // each sends the same
    for (const Action& action : row) {
      if (is_computation(action.kind)) {
        ++times[{action.kind, action.stage, action.unit.value_or(kAllLayers)}];
      }
    }
    for (const auto& [what, count] : times) {
      const auto& [kind, stage, layer] = what;
      const StageLayers& layers = layers_of(stages_, stage);
      for (int l = layers.begin; l < layers.end; ++l) {
        if (layer == kAllLayers || l == layers.begin + layer) add_layer(kind, l, count);
      }
    }
    return std::move(costs_);
  }

 private:
  static constexpr int kAllLayers = -1;

  void add_layer(ActionKind kind, int layer, std::int64_t times) {
    const auto index = static_cast<std::size_t>(layer);
    if (kind != ActionKind::kBackward) return add_unit(kind, deferred_.at(index), times);
    add_unit(ActionKind::kBackwardInput, fused_.at(index), times);
    add_unit(ActionKind::kBackwardWeight, fused_.at(index), times);
  }
  void add_unit(ActionKind pass, const UnitCost& unit, std::int64_t times) {
    for (const OpWire& sent : unit.wire(pass)) {
      costs_[group_name(mesh_, sent.axes)][std::string(name(sent.operation))] +=
          WireCost{times * sent.calls, times * sent.bytes};
    }
  }

  Mesh mesh_;
  std::span<const StageLayers> stages_;
  std::vector<UnitCost> fused_, deferred_;
  WireCosts costs_;
};

}  // namespace

WireCost& WireCost::operator+=(WireCost more) {
  calls += more.calls;
  bytes += more.bytes;
  return *this;
}

void add(WireCosts& to, const WireCosts& more) {
  for (const auto& [group, operations] : more) {
    for (const auto& [operation, cost] : operations) to[group][operation] += cost;
  }
}

void keep_most(WireCosts& most, const WireCosts& sent) {
  for (const auto& [group, operations] : sent) {
    for (const auto& [operation, cost] : operations) {
      WireCost& entry = most[group][operation];
      if (cost.bytes >= entry.bytes) entry = cost;
    }
  }
}

WireCosts tensor_wire(const std::vector<Action>& row, const ModelSpec& model,
                      const WorkShape& shape, std::span<const StageLayers> stages) {
  const bool alone = shape.split.degree == 1 && shape.context.degree == 1;
  if (alone && shape.split.exchange_ranks() == 1) return {};
  return RowWire(model, shape, stages).run(row);
}

WireCosts message_wire(const std::vector<Action>& row, const ModelSpec& model,
                       const WorkShape& shape) {
  const std::int64_t sends =
      std::count_if(row.begin(), row.end(), [](const Action& a) { return is_send(a.kind); });
  if (sends == 0) return {};
  return {{"pp", {{"send", {sends, sends * message_bytes(model, shape)}}}}};
}

}  // namespace quatrain
