// SPDX-License-Identifier: Apache-2.0
#include "quatrain/cost/zero.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/cost/local.h"
#include "quatrain/mesh/group_name.h"
#include "quatrain/mesh/row_cut.h"
#include "quatrain/mesh/shape.h"
#include "quatrain/mesh/wire.h"
#include "quatrain/schedule/messages.h"

namespace quatrain {
namespace {

std::int64_t largest(const std::vector<std::int64_t>& sizes) {
  return *std::max_element(sizes.begin(), sizes.end());
}

const AxisSet kShard = Axis::kDpShard;
const AxisSet kReplicate = Axis::kDpReplicate;
const AxisSet kData = kShard | kReplicate;

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

std::vector<std::int64_t> ZeroUnit::value_pieces(int pieces) const {
  return sizes_between(row_cuts(shapes, pieces));
}

std::vector<std::int64_t> ZeroUnit::grad_pieces(int pieces) const {
  return sizes_between(cuts_of_kept(shapes, trainable, row_cuts(shapes, pieces)));
}

std::vector<ZeroUnit> zero_units(const ModelSpec& model, const std::vector<std::string>& trainable,
                                 const TensorSplit& split) {
  std::vector<ZeroUnit> units(static_cast<std::size_t>(model.layers) + 2);
  units.front().name = "embedding";
  units.back().name = "head";
  for (std::int64_t l = 0; l < model.layers; ++l) {
    units[static_cast<std::size_t>(l + 1)].name = fmt::format("layers.{}", l);
  }
  for (const LocalParameter& local : trained_parameters(model, split, trainable)) {
    ZeroUnit& unit = units[static_cast<std::size_t>(local.info.layer + 1)];
    unit.shapes.push_back(local.shape());
    unit.trainable.push_back(local.info.trainable);
    unit.summands.push_back(local.partial_grad ? local.replicas : 1);
  }
  return units;
}

StageUnits stage_units(const ModelSpec& model, const std::vector<ZeroUnit>& units) {
  StageUnits stage(units.size());
  const auto use = [&](LayerUnits& layer, std::size_t unit) {
    layer.values.push_back(static_cast<int>(unit));
    if (units[unit].trainable_numel() > 0) layer.grads.push_back(static_cast<int>(unit));
  };
  for (std::size_t i = 0; i < units.size(); ++i) use(stage[i], i);
  if (model.tied) use(stage.back(), 0);
  stage.front().input_half_reads = false;
  stage.back().input_half_reads = false;
  stage.back().grads_in_forward = true;
  return stage;
}

int ZeroShape::pieces() const { return zero_stage == 0 ? 1 : mesh.degree(kShard); }

ZeroShape zero_shape(const ModelSpec& model, const Plan& plan,
                     const std::vector<std::string>& trainable, int rank) {
  return {zero_units(model, trainable, tensor_split(plan, rank)), plan.zero_stage, plan.dtype,
          Mesh(plan.degrees, plan.axis_order, rank)};
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
      if (kind != ActionKind::kReduceGrad) continue;
      sum_terms(unit_of(unit), count);
      reduce(unit_of(unit), count);
    }
    if (pieces_ > 1) sum_shards();
    return std::move(costs_);
  }

 private:
  const ZeroUnit& unit_of(int index) const {
    return shape_.units.at(static_cast<std::size_t>(index));
  }
  void add(const std::string& group, const char* operation, std::int64_t times, Bytes sent) {
    costs_[group][operation] += WireCost{times, times * sent};
  }

  void gather(const ZeroUnit& unit, std::int64_t times) {
    if (pieces_ == 1) return;
    const std::int64_t sent = gather_wire(pieces_, largest(unit.value_pieces(pieces_)));
    add(group_name(shape_.mesh, kShard), "all_gather", times, {sent * size_of(shape_.dtype)});
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
    if (pieces_ > 1) {
      const std::int64_t sent = gather_wire(pieces_, largest(unit.grad_pieces(pieces_)));
      add(group_name(shape_.mesh, kShard), "reduce_scatter", times, {sent * wide_size_});
    } else if (const int ranks = shape_.mesh.degree(kData); ranks > 1) {
      add(group_name(shape_.mesh, kData), "all_reduce", times,
          {all_reduce_wire(ranks, unit.trainable_numel()) * wide_size_});
    }
  }
  // Over replicas of shards, once a step.
  void sum_shards() {
    const int replicas = shape_.mesh.degree(kReplicate);
    if (replicas == 1) return;
    const auto own = static_cast<std::size_t>(shape_.mesh.coord(kShard));
    for (const ZeroUnit& unit : shape_.units) {
      if (unit.trainable_numel() == 0) continue;
      add(group_name(shape_.mesh, kReplicate), "all_reduce", 1,
          {all_reduce_wire(replicas, unit.grad_pieces(pieces_)[own]) * wide_size_});
    }
  }

  const ZeroShape& shape_;
  const int pieces_ = shape_.pieces();
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
  add(costs, tensor_wire(row, model, work));
  return costs;
}

namespace {

// Follows a row as the executor does: a reduced gradient is freed when the next one is opened.
class PeakWalk {
 public:
  PeakWalk(const ZeroShape& shape, const StageUnits& layers, Bytes head)
      : shape_(shape), layers_(layers), head_(head) {}

  ZeroPeaks run(const std::vector<Action>& row) {
    for (const Action& action : row) step(action);
    return peaks_;
  }

 private:
  const ZeroUnit& unit(int index) const { return shape_.units.at(static_cast<std::size_t>(index)); }

  void step(const Action& action) {
    const int index = action.unit.value_or(-1);
    switch (action.kind) {
      case ActionKind::kUnshard:
        gathered_ += gathered_bytes(index);
        peaks_.buffers = std::max(peaks_.buffers, Bytes{gathered_});
        return;
      case ActionKind::kReshard:
        gathered_ -= gathered_bytes(index);
        return;
      case ActionKind::kReduceGrad:
        reducing_.insert(index);
        return;
      case ActionKind::kForward:
      case ActionKind::kBackwardWeight:
      case ActionKind::kBackward:
        return open(action);
      case ActionKind::kBackwardInput:
      case ActionKind::kSendForward:
      case ActionKind::kRecvForward:
      case ActionKind::kSendBackward:
      case ActionKind::kRecvBackward:
      case ActionKind::kReduceTied:
      case ActionKind::kNormPart:
      case ActionKind::kOptimizerStep:
        return;
    }
  }

  // A computation of one layer, or of all.
  void open(const Action& action) {
    if (action.unit) return open(action, layers_.at(static_cast<std::size_t>(*action.unit)));
    for (const LayerUnits& layer : layers_) open(action, layer);
  }
  void open(const Action& action, const LayerUnits& layer) {
    const bool forward = action.kind == ActionKind::kForward;
    if (layer.grads_in_forward != forward) return;
    if (forward) peaks_.buffers = std::max(peaks_.buffers, Bytes{gathered_} + head_);
    if (shape_.pieces() == 1 || shape_.zero_stage < 2) return;
    for (const int index : layer.grads) {
      if (open_.contains(index) && !reducing_.contains(index)) continue;
      for (const int done : reducing_) {
        whole_ -= bytes(done);
        open_.erase(done);
      }
      reducing_.clear();
      open_.insert(index);
      whole_ += bytes(index);
      peaks_.whole_grads = std::max(peaks_.whole_grads, Bytes{whole_});
    }
  }
  std::int64_t gathered_bytes(int index) const {
    const bool gathers = shape_.zero_stage == 3 && shape_.pieces() > 1;
    return gathers ? unit(index).numel() * size_of(shape_.dtype) : 0;
  }
  std::int64_t bytes(int index) const {
    return unit(index).trainable_numel() * size_of(wide(shape_.dtype));
  }

  const ZeroShape& shape_;
  const StageUnits& layers_;
  Bytes head_;
  ZeroPeaks peaks_;
  std::int64_t gathered_ = 0;
  std::int64_t whole_ = 0;
  std::set<int> open_, reducing_;
};

}  // namespace

ZeroPeaks zero_peaks(const std::vector<Action>& row, const ZeroShape& shape,
                     const StageUnits& layers, Bytes head) {
  return PeakWalk(shape, layers, head).run(row);
}

Schedule lowered_schedule(const ModelSpec& model, const Plan& plan,
                          const std::vector<std::string>& trainable) {
  const Mesh mesh(plan.degrees, plan.axis_order, 0);
  Schedule schedule =
      make_schedule(plan.schedule, {.num_ranks = mesh.degree(Axis::kPp),
                                    .num_microbatches = static_cast<int>(plan.num_microbatches),
                                    .chunks = plan.chunks});
  if (mesh.degree(Axis::kPp) > 1) schedule = with_messages(without_pairs(schedule));
  schedule = with_optimizer_step(schedule);
  if (model.tied) schedule = with_tied_reduce(schedule);
  if (mesh.degree(kData) == 1 && mesh.degree(Axis::kTp) == 1) return schedule;
  // Replicas alone have no shards: gradients stay whole, whatever the stage.
  return with_zero(schedule, {.zero_stage = mesh.degree(kShard) == 1 ? 0 : plan.zero_stage,
                              .prefetch = plan.prefetch,
                              .reduce_once = plan.reduce_once,
                              .backward = mesh.degree(Axis::kTp) > 1 ? LayerBackward::kFused
                                                                     : LayerBackward::kHalves,
                              .stages = {stage_units(model, zero_units(model, trainable))}});
}

}  // namespace quatrain
