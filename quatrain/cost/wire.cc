// SPDX-License-Identifier: Apache-2.0
#include "quatrain/cost/wire.h"

#include <algorithm>

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
    for (const Action& action : row) step(action);
    return std::move(costs_);
  }

 private:
  void step(const Action& action) {
    if (action.kind > ActionKind::kBackward) return;
    if (action.kind != ActionKind::kBackward) return add_pass(action, action.kind, deferred_);
    add_pass(action, ActionKind::kBackwardInput, fused_);
    add_pass(action, ActionKind::kBackwardWeight, fused_);
  }
  // Of one layer, or of all.
  void add_pass(const Action& action, ActionKind pass, const std::vector<UnitCost>& units) {
    if (action.unit) return add_unit(units.at(static_cast<std::size_t>(*action.unit)), pass);
    for (const UnitCost& unit : units) add_unit(unit, pass);
  }
  void add_unit(const UnitCost& unit, ActionKind pass) {
    for (const OpWire& sent : unit.wire(pass)) {
      costs_[group_name(mesh_, sent.axes)][std::string(name(sent.operation))] +=
          WireCost{sent.calls, sent.bytes};
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
