// SPDX-License-Identifier: Apache-2.0
#include "quatrain/cost/wire.h"

#include <map>
#include <string>
#include <utility>

#include "quatrain/cost/local.h"
#include "quatrain/mesh/group_name.h"
#include "quatrain/mesh/placement.h"

namespace quatrain {
namespace {

// Sums the layers' collectives along a row.
class RowWire {
 public:
  RowWire(const ModelSpec& model, WorkShape shape) : mesh_(tensor_mesh(shape.split)) {
    shape.fused_backward = true;
    fused_ = walk(model, shape);
    shape.fused_backward = false;
    deferred_ = walk(model, shape);
  }

  WireCosts run(const std::vector<Action>& row) && {
    std::map<std::pair<ActionKind, int>, std::int64_t> times;  // a layer sends the same each time
    for (const Action& action : row) ++times[{action.kind, action.unit.value_or(kAllLayers)}];
    for (const auto& [what, count] : times) add_action(what.first, what.second, count);
    return std::move(costs_);
  }

 private:
  static constexpr int kAllLayers = -1;

  void add_action(ActionKind kind, int layer, std::int64_t times) {
    if (kind > ActionKind::kBackward) return;
    if (kind != ActionKind::kBackward) return add_pass(kind, deferred_, layer, times);
    add_pass(ActionKind::kBackwardInput, fused_, layer, times);
    add_pass(ActionKind::kBackwardWeight, fused_, layer, times);
  }
  void add_pass(ActionKind pass, const std::vector<UnitCost>& units, int layer,
                std::int64_t times) {
    if (layer != kAllLayers)
      return add_unit(pass, units.at(static_cast<std::size_t>(layer)), times);
    for (const UnitCost& unit : units) add_unit(pass, unit, times);
  }
  void add_unit(ActionKind pass, const UnitCost& unit, std::int64_t times) {
    for (const OpWire& sent : unit.wire(pass)) {
      costs_[group_name(mesh_, sent.axes)][std::string(name(sent.operation))] +=
          WireCost{times * sent.calls, times * sent.bytes};
    }
  }

  Mesh mesh_;
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

WireCosts tensor_wire(const std::vector<Action>& row, const ModelSpec& model,
                      const WorkShape& shape) {
  if (shape.split.degree == 1) return {};
  return RowWire(model, shape).run(row);
}

}  // namespace quatrain
