// SPDX-License-Identifier: Apache-2.0
#include "quatrain/cost/zero.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/mesh/group_name.h"
#include "quatrain/mesh/row_cut.h"
#include "quatrain/mesh/shape.h"
#include "quatrain/mesh/wire.h"
#include "quatrain/spec/tensor_split.h"

namespace quatrain {
namespace {

std::int64_t largest(const std::vector<std::int64_t>& sizes) {
  return *std::max_element(sizes.begin(), sizes.end());
}

struct View {
  AxisSet shard, replicate;
  AxisSet all() const { return shard | replicate; }
};
const View kDense{{Axis::kDpShard, Axis::kCp}, Axis::kDpReplicate};
const View kExperts{Axis::kEdpShard, Axis::kEdpReplicate};

const View& view_of(const ZeroUnit& unit) { return unit.of_experts ? kExperts : kDense; }

const std::string kTable(kTiedTable);  // unit_specs()' names
const std::string kEmbedding = "embedding";

}  // namespace

std::int64_t ZeroUnit::numel() const {
  std::int64_t sum = 0;
  for (const auto& shape : shapes) sum += elements(shape);
  return sum;
}

std::int64_t ZeroUnit::trainable_numel() const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < shapes.size(); ++i) sum += trainable[i] ? elements(shapes[i]) : 0;
  return sum;
}

std::int64_t ZeroUnit::trainable_numel(int of_summands) const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    sum += trainable[i] && summands[i] == of_summands ? elements(shapes[i]) : 0;
  }
  return sum;
}

namespace {

ZeroUnit zero_unit(const UnitSpec& spec, const ZeroShape& shape) {
  ZeroUnit unit;
  unit.name = spec.name;
  unit.trained = spec.trained;
  unit.of_experts = spec.parameters.front().info.expert >= 0;
  const int pieces = shape.sharded ? shape.mesh.degree(view_of(unit).shard) : 1;
  for (const LocalParameter& local : spec.parameters) {
    unit.shapes.push_back(local.shape());
    unit.trainable.push_back(local.info.trainable);
    unit.summands.push_back(local.partial_grad ? local.replicas : 1);
  }
  const std::vector<std::int64_t> cuts = row_cuts(unit.shapes, pieces);
  unit.value_pieces = sizes_between(cuts);
  unit.grad_pieces = sizes_between(cuts_of_kept(unit.shapes, unit.trainable, cuts));
  return unit;
}

// Finds units by name.
class UnitNumbers {
 public:
  explicit UnitNumbers(const std::vector<ZeroUnit>& units) : units_(units) {
    for (const ZeroUnit& unit : units)
      numbers_.emplace(unit.name, static_cast<int>(numbers_.size()));
  }
  bool has(const std::string& name) const { return numbers_.contains(name); }
  void use(LayerUnits& layer, const std::string& name) const {
    const auto unit = numbers_.find(name);
    CHECK(unit != numbers_.end(), "no unit {} on this rank", name);
    layer.values.push_back(unit->second);
    if (units_[static_cast<std::size_t>(unit->second)].trained) {
      layer.grads.push_back(unit->second);
    }
  }

 private:
  const std::vector<ZeroUnit>& units_;
  std::map<std::string, int> numbers_;
};

LayerUnits layer_units(const ModelSpec& model, const UnitNumbers& units, int layer) {
  LayerUnits uses;
  const bool ends = layer == 0 || layer == model.layers + 1;
  uses.input_half_reads = !ends;
  uses.grads_in_forward = layer == model.layers + 1;
  if (layer == 0) {
    for (const std::string& name : {kTable, kEmbedding}) {
      if (units.has(name)) units.use(uses, name);
    }
  } else if (!ends) {
    const std::string name = fmt::format("layers.{}", layer - 1);
    units.use(uses, name);
    if (units.has(name + ".experts")) units.use(uses, name + ".experts");
  } else {
    units.use(uses, "head");
    if (model.tied) units.use(uses, units.has(kTable) ? kTable : kEmbedding);
  }
  return uses;
}

}  // namespace

ZeroShape zero_shape(const ModelSpec& model, const Plan& plan,
                     const std::vector<std::string>& trainable, int rank,
                     const std::vector<int>& rank_of_stage) {
  ZeroShape shape;
  shape.zero_stage = plan.zero_stage;
  shape.dtype = plan.dtype;
  shape.mesh = Mesh(plan.degrees, plan.axis_order, rank);
  const bool cuts_experts = model.experts && shape.mesh.degree(kExperts.shard) > 1;
  shape.sharded = plan.zero_stage > 0 && (shape.mesh.degree(kDense.shard) > 1 || cuts_experts);
  CHECK(!rank_of_stage.empty() || shape.mesh.degree(Axis::kPp) == 1,
        "which of {} pipeline ranks holds which stage is not said", shape.mesh.degree(Axis::kPp));
  shape.stages = stages_of_rank(
      stage_layers(model.layers, plan.stage_begin),
      rank_of_stage.empty() ? std::vector<int>(plan.stage_begin.size(), 0) : rank_of_stage,
      shape.mesh.coord(Axis::kPp));
  for (const UnitSpec& spec :
       unit_specs(model, tensor_split(plan, rank), trainable, shape.stages)) {
    shape.units.push_back(zero_unit(spec, shape));
  }
  return shape;
}

std::size_t ZeroShape::piece(const ZeroUnit& unit) const {
  return unit.cut() ? static_cast<std::size_t>(mesh.coord(view_of(unit).shard)) : 0;
}

std::vector<StageUnits> stage_units(const ModelSpec& model, const ZeroShape& shape) {
  const UnitNumbers units(shape.units);
  std::vector<StageUnits> stages;
  for (const StageLayers& stage : shape.stages) {
    StageUnits& layers = stages.emplace_back();
    for (int layer = stage.begin; layer < stage.end; ++layer) {
      layers.push_back(layer_units(model, units, layer));
    }
  }
  return stages;
}

double even_zero_bytes(double parameters, int ranks, int zero_stage,
                       const BytesPerParameter& bytes) {
  const auto part = [&](std::int64_t size, int cut_from_stage) {
    const double whole = parameters * static_cast<double>(size);
    return zero_stage >= cut_from_stage ? whole / ranks : whole;
  };
  return part(bytes.value, 3) + part(bytes.grad, 2) + part(bytes.optimizer, 1);
}

namespace {

class ZeroWire {
 public:
  explicit ZeroWire(const ZeroShape& shape) : shape_(shape) {}

  WireCosts run(const std::vector<Action>& row) && {
    std::map<std::pair<ActionKind, int>, std::int64_t> times;  // a unit sends the same each time
    for (const Action& action : row) ++times[{action.kind, action.unit.value_or(-1)}];
    for (const auto& [what, count] : times) {
      const auto& [kind, unit] = what;
      if (kind == ActionKind::kUnshard) gather(unit_of(unit), count);
      if (kind == ActionKind::kReduceTied) sum_copies(count);
      if (kind != ActionKind::kReduceGrad) continue;
      const bool later = shape_.sharded && !unit_of(unit).cut();
      sum_terms(unit_of(unit), later ? 1 : count);
      if (!later && unit_of(unit).trainable_numel() > 0) reduce(unit_of(unit), count);
    }
    if (shape_.sharded) sum_shards();
    return std::move(costs_);
  }

 private:
  const ZeroUnit& unit_of(int index) const {
    return shape_.units.at(static_cast<std::size_t>(index));
  }
  void add(const std::string& group, const char* operation, std::int64_t times, Bytes sent) {
    costs_[group][operation] += WireCost{times, times * sent};
  }

  std::string group_of(AxisSet axes) const { return group_name(shape_.mesh, axes); }
  static int shards(const ZeroUnit& unit) { return static_cast<int>(unit.value_pieces.size()); }

  void gather(const ZeroUnit& unit, std::int64_t times) {
    if (!unit.cut()) return;
    const std::int64_t sent = gather_wire(shards(unit), largest(unit.value_pieces));
    add(group_of(view_of(unit).shard), "all_gather", times, {sent * size_of(shape_.dtype)});
  }
  // Over tp, before data ranks reduce. Every rank leaves one term in `summands` ranks' sum.
  void sum_terms(const ZeroUnit& unit, std::int64_t times) {
    const int ranks = shape_.mesh.degree(Axis::kTp);
    for (const int summands : std::set(unit.summands.begin(), unit.summands.end())) {
      const std::int64_t numel = unit.trainable_numel(summands);
      if (summands == 1 || numel == 0) continue;
      add(summands == ranks ? group_name(shape_.mesh, Axis::kTp) : "tp_repeat", "all_reduce", times,
          {all_reduce_wire(summands, numel) * wide_size_});
    }
  }
  void reduce(const ZeroUnit& unit, std::int64_t times) {
    const View& view = view_of(unit);
    if (unit.cut()) {
      const std::int64_t sent = gather_wire(shards(unit), largest(unit.grad_pieces));
      add(group_of(view.shard), "reduce_scatter", times, {sent * wide_size_});
    } else if (const int ranks = shape_.mesh.degree(view.all()); ranks > 1) {
      add(group_of(view.all()), "all_reduce", times,
          {all_reduce_wire(ranks, unit.trainable_numel()) * wide_size_});
    }
  }
  // Over replicas of shards, once a step.
  void sum_shards() {
    for (const ZeroUnit& unit : shape_.units) {
      const AxisSet replicate = view_of(unit).replicate;
      const int replicas = shape_.mesh.degree(replicate);
      if (replicas == 1 || unit.trainable_numel() == 0) continue;
      add(group_of(replicate), "all_reduce", 1,
          {all_reduce_wire(replicas, own_piece(unit)) * wide_size_});
    }
  }
  // Between the two ranks that hold a tied table, each piece by itself.
  void sum_copies(std::int64_t times) {
    const auto table = std::find_if(shape_.units.begin(), shape_.units.end(),
                                    [](const ZeroUnit& unit) { return unit.name == kTable; });
    CHECK(table != shape_.units.end(), "REDUCE_TIED on a rank without a copy of the table");
    add(group_name(shape_.mesh, Axis::kPp), "all_reduce", times,
        {all_reduce_wire(2, own_piece(*table)) * wide_size_});
  }
  std::int64_t own_piece(const ZeroUnit& unit) const {
    return unit.grad_pieces[shape_.piece(unit)];
  }

  const ZeroShape& shape_;
  const std::int64_t wide_size_ = size_of(wide(shape_.dtype));
  WireCosts costs_;
};

}  // namespace

WireCosts zero_wire(const std::vector<Action>& row, const ZeroShape& shape) {
  return ZeroWire(shape).run(row);
}

WireCosts step_wire(const std::vector<Action>& row, const ModelSpec& model, const WorkShape& work,
                    const ZeroShape& shape) {
  WireCosts costs = zero_wire(row, shape);
  add(costs, tensor_wire(row, model, work, shape.stages));
  add(costs, message_wire(row, model, work));
  return costs;
}

}  // namespace quatrain
