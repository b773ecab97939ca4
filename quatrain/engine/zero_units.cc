// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/zero_units.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "quatrain/kernels/check.h"
#include "quatrain/kernels/memory.h"
#include "quatrain/mesh/row_cut.h"
#include "quatrain/schedule/build.h"

namespace quatrain {
namespace {

at::Tensor allocate_values(const ParamUnit& unit, std::int64_t numel, MemoryCategory category) {
  const ScopedMemoryCategory scope(category);
  return at::empty({numel}, at::TensorOptions(unit.dtype()).device(unit.device()));
}

at::Tensor allocate_grads(const ParamUnit& unit, std::int64_t numel) {
  const ScopedMemoryCategory scope(MemoryCategory::kGrads);
  return at::zeros({numel}, at::TensorOptions(wide(unit.dtype())).device(unit.device()));
}

}  // namespace

struct ZeroUnits::Held {
  ParamUnit* unit;
  std::size_t index;                            // in shards_
  Communicator *all, *shard, *replicate;        // of its view
  bool frees_values, frees_grads;               // stage 3; stages 2 and 3
  UnitCuts cuts;                                // a piece a rank
  std::vector<std::int64_t> sizes, grad_sizes;  // of the pieces
  bool cut() const { return sizes.size() > 1; }
  std::size_t piece() const { return cut() ? static_cast<std::size_t>(shard->rank()) : 0; }

  // In flight; a work that is empty is done.
  std::optional<Action> gathering;
  double gather_began_us = 0.0;
  Work gather;
  at::Tensor gathered;  // stage 3: whole values, from UNSHARD to RESHARD
  std::optional<Action> reducing;
  double reduction_began_us = 0.0;
  Work reduction;
  bool reduced = false;  // in this step, at least once
};

ZeroUnits::ZeroUnits(Model& model, RankGroups& groups, int zero_stage)
    : model_(model),
      stages_(stage_units(model)),
      groups_(groups),
      replica_sums_(*groups.tensor, model.kv_repeat()),
      zero_stage_(zero_stage),
      sharded_(zero_stage >= 1 && (groups.shard->size() > 1 ||
                                   (groups.experts && groups.experts->shard->size() > 1))) {
  CHECK(zero_stage >= 0 && zero_stage <= 3, "ZeRO stage {}", zero_stage);
  for (const auto& unit : model.units()) held_.push_back(hold(*unit, held_.size()));
}

ZeroUnits::Held ZeroUnits::hold(ParamUnit& unit, std::size_t index) {
  Held held;
  held.unit = &unit;
  held.index = index;
  const bool of_experts = unit.of_experts();
  held.all = (of_experts ? groups_.experts->all : groups_.all).get();
  held.shard = (of_experts ? groups_.experts->shard : groups_.shard).get();
  held.replicate = (of_experts ? groups_.experts->replicate : groups_.replicate).get();
  held.cuts = cuts(unit, sharded_ ? held.shard->size() : 1);
  held.sizes = sizes_between(held.cuts.values);
  held.grad_sizes = sizes_between(held.cuts.grads);
  held.frees_values = zero_stage_ == 3 && held.cut();
  held.frees_grads = zero_stage_ >= 2 && held.cut();
  return held;
}

Communicator& ZeroUnits::owners(const ParamUnit& unit) {
  if (!sharded_) return *groups_.control.alone;
  return unit.of_experts() ? *groups_.experts->control_shard : *groups_.control.shard;
}

Communicator& ZeroUnits::holders() {
  return sharded_ ? *groups_.control.shard_tensor : *groups_.control.tensor;
}

Communicator& ZeroUnits::expert_holders() {
  return sharded_ ? *groups_.experts->control_all : *groups_.experts->control_block;
}

ZeroUnits::~ZeroUnits() = default;

void ZeroUnits::allocate(bool with_grads) {
  shards_.clear();
  for (Held& held : held_) allocate_shard(held, with_grads && held.unit->trainable_numel() > 0);
}

void ZeroUnits::allocate_shard(Held& held, bool with_grads) {
  ParamUnit& unit = *held.unit;
  const std::size_t piece = held.piece();
  shards_.push_back({&unit, held.cuts.values[piece], held.cuts.values[piece + 1], {}, {}});
  UnitShard& shard = shards_.back();
  unit.set_values({});
  unit.set_grads({});
  if (held.frees_values) {
    shard.value = allocate_values(unit, held.sizes[piece], MemoryCategory::kParams);
  } else {
    unit.set_values(allocate_values(unit, unit.numel(), MemoryCategory::kParams));
    shard.value = unit.flat_value().narrow(0, shard.begin, held.sizes[piece]);
  }
  if (!with_grads) return;
  if (held.frees_grads) {
    shard.grad = allocate_grads(unit, held.grad_sizes[piece]);
  } else {
    unit.set_grads(allocate_grads(unit, unit.trainable_numel()));
    shard.grad = unit.flat_grad().narrow(0, held.cuts.grads[piece], held.grad_sizes[piece]);
  }
}

// Stages that keep whole values draw all of them: cheaper than a gather.
void ZeroUnits::initialise(std::uint64_t seed) {
  for (const Held& held : held_) {
    const UnitShard& shard = shards_[held.index];
    quatrain::initialise(held.frees_values ? shard : whole(*held.unit), seed);
  }
}

void ZeroUnits::begin_step(TraceRecorder* trace) {
  trace_ = trace;
  for (Held& held : held_) {
    held.reduced = false;
    held.unit->zero_grads();
  }
}

void ZeroUnits::execute(const Action& action) {
  const int index = action.unit.value_or(-1);
  CHECK(index >= 0 && index < static_cast<int>(held_.size()), "{} names no unit of this stage",
        to_string(action));
  Held& held = held_[static_cast<std::size_t>(index)];
  if (action.kind == ActionKind::kUnshard) unshard(action, held);
  if (action.kind == ActionKind::kReshard) reshard(held);
  if (action.kind == ActionKind::kReduceGrad) reduce_grad(action, held);
}

template <class F>
void ZeroUnits::for_layers_of(const Action& computation, const F& f) {
  const StageUnits& layers = stages_.at(static_cast<std::size_t>(computation.stage));
  if (computation.unit) return f(layers.at(static_cast<std::size_t>(*computation.unit)));
  for (const LayerUnits& layer : layers) f(layer);
}

void ZeroUnits::ready_values(const Action& computation) {
  if (computation.kind == ActionKind::kBackwardWeight) return;
  const bool forward = computation.kind == ActionKind::kForward;
  for_layers_of(computation, [&](const LayerUnits& layer) {
    if (!forward && !layer.input_half_reads) return;
    for (const int unit : layer.values) finish_gather(held_[static_cast<std::size_t>(unit)]);
  });
}

void ZeroUnits::ready_grads(const Action& computation) {
  if (computation.kind == ActionKind::kBackwardInput) return;
  const bool forward = computation.kind == ActionKind::kForward;
  for_layers_of(computation, [&](const LayerUnits& layer) {
    if (layer.grads_in_forward != forward) return;
    for (const int unit : layer.grads) {
      Held& held = held_[static_cast<std::size_t>(unit)];
      if (held.frees_grads) open_grads(held);
    }
  });
}

void ZeroUnits::unshard(const Action& action, Held& held) {
  if (!held.cut()) return;
  CHECK(!held.gathering && !held.gathered.defined(), "{}: unit {} is gathered already",
        to_string(action), held.unit->name());
  const UnitShard& shard = shards_[held.index];
  at::Tensor out = held.unit->flat_value();
  if (held.frees_values) {
    out = held.gathered = allocate_values(*held.unit, held.unit->numel(), MemoryCategory::kBuffers);
  }
  held.gathering = action;
  held.gather_began_us = now_us();
  held.gather = held.shard->all_gather(out, shard.value, held.sizes);
}

void ZeroUnits::finish_gather(Held& held) {
  if (held.gathering) {
    wait(held.gather, *held.gathering, TraceLane::kGather, held.gather_began_us);
    held.gathering.reset();
    if (held.frees_values) held.unit->set_values(held.gathered);
  }
  CHECK(held.unit->flat_value().defined(), "unit {} is used, but nothing gathered it",
        held.unit->name());
}

void ZeroUnits::reshard(Held& held) {
  if (!held.frees_values) return;
  finish_gather(held);
  held.unit->set_values({});
  held.gathered.reset();
}

// A new whole gradient waits for those that are being reduced, so that one more never exists.
void ZeroUnits::open_grads(Held& held) {
  if (held.unit->flat_grad().defined() && !held.reducing) return;
  finish_reductions();
  held.unit->set_grads(allocate_grads(*held.unit, held.unit->trainable_numel()));
}

void ZeroUnits::reduce_grad(const Action& action, Held& held) {
  CHECK(!held.reducing, "{}: a reduction of unit {} is in flight", to_string(action),
        held.unit->name());
  if (held.unit->trainable_numel() == 0) return;  // others' experts are trained
  at::Tensor& grad = held.unit->flat_grad();
  CHECK(grad.defined(), "{}: unit {} has no gradient", to_string(action), held.unit->name());
  if (sharded_ && !held.cut()) return;  // later: sum_whole_units()
  replica_sums_.sum(*held.unit);
  if (!sharded_ && held.all->size() == 1) return;
  held.reducing = action;
  held.reduction_began_us = now_us();
  if (!sharded_) {
    held.reduction = held.all->all_reduce(grad, ReduceOp::kSum);
    return;
  }
  const std::size_t rank = held.piece();
  const at::Tensor own = grad.narrow(0, held.cuts.grads[rank], held.grad_sizes[rank]);
  held.reduction = held.shard->reduce_scatter(own, grad, held.grad_sizes, ReduceOp::kSum);
}

void ZeroUnits::finish_reduction(Held& held) {
  if (!held.reducing) return;
  wait(held.reduction, *held.reducing, TraceLane::kReduce, held.reduction_began_us);
  held.reducing.reset();
  if (held.frees_grads) {
    const std::size_t rank = held.piece();
    const at::Tensor own =
        held.unit->flat_grad().narrow(0, held.cuts.grads[rank], held.grad_sizes[rank]);
    at::Tensor& sum = shards_[held.index].grad;
    if (held.reduced) {
      sum.add_(own);
    } else {
      sum.copy_(own);
    }
    held.unit->set_grads({});
  }
  held.reduced = true;
}

void ZeroUnits::finish_reductions() {
  for (Held& held : held_) finish_reduction(held);
}

void ZeroUnits::reduce_tied(const Action& action, Communicator& owners) {
  const auto table = std::find_if(held_.begin(), held_.end(),
                                  [](const Held& held) { return held.unit->name() == kTiedTable; });
  CHECK(table != held_.end() && !tying_, "{}: no copied table, or its sum is in flight",
        to_string(action));
  finish_reduction(*table);
  tying_ = action;
  tying_began_us_ = now_us();
  tied_ = owners.all_reduce(shards_[table->index].grad, ReduceOp::kSum);
}

void ZeroUnits::finish_tied() {
  if (!tying_) return;
  wait(tied_, *tying_, TraceLane::kReduce, tying_began_us_);
  tying_.reset();
}

void ZeroUnits::finish_grads() {
  finish_reductions();
  finish_tied();
  for (const Held& held : held_) {
    CHECK(!held.frees_grads || !held.unit->flat_grad().defined(),
          "the gradient of unit {} was never reduced", held.unit->name());
  }
  if (!sharded_) return;
  sum_whole_units();
  sum_over_replicas();
}

void ZeroUnits::sum_whole_units() {
  for (Held& held : held_) {
    if (!held.cut()) replica_sums_.sum(*held.unit);
  }
}

void ZeroUnits::sum_over_replicas() {
  for (Held& held : held_) {
    const at::Tensor& grad = shards_[held.index].grad;
    if (!grad.defined() || held.replicate->size() == 1) continue;
    held.reduction_began_us = now_us();
    held.reduction = held.replicate->all_reduce(grad, ReduceOp::kSum);
  }
  for (Held& held : held_) {
    if (!shards_[held.index].grad.defined() || held.replicate->size() == 1) continue;
    const Action sum = on_unit(0, ActionKind::kReduceGrad, static_cast<int>(held.index));
    wait(held.reduction, sum, TraceLane::kReduce, held.reduction_began_us);
  }
}

void ZeroUnits::end_step() {
  for (Held& held : held_) {
    if (held.gathering) finish_gather(held);
  }
  trace_ = nullptr;
}

void ZeroUnits::forget_gathers() {
  for (Held& held : held_) {
    if (held.gathering) finish_gather(held);
    if (held.gathered.defined()) reshard(held);
  }
}

void ZeroUnits::open_values(ParamUnit& unit) {
  if (unit.flat_value().defined()) return;
  unit.set_values(allocate_values(unit, unit.numel(), MemoryCategory::kBuffers));
}

void ZeroUnits::keep_values(ParamUnit& unit) {
  const auto held =
      std::find_if(held_.begin(), held_.end(), [&](const Held& h) { return h.unit == &unit; });
  CHECK(held != held_.end(), "unit {} is not of these", unit.name());
  if (!held->frees_values) return;
  const UnitShard& shard = shards_[held->index];
  shard.value.copy_(unit.flat_value().narrow(0, shard.begin, shard.end - shard.begin));
  unit.set_values({});
}

void ZeroUnits::gather_kept_values() {
  for (std::size_t i = 0; i < held_.size(); ++i) {
    if (held_[i].frees_values) continue;
    unshard(on_unit(0, ActionKind::kUnshard, static_cast<int>(i)), held_[i]);
    finish_gather(held_[i]);
  }
}

double ZeroUnits::now_us() const { return trace_ != nullptr ? trace_->now_us() : 0.0; }

void ZeroUnits::wait(Work& work, const Action& action, TraceLane lane, double began_us) {
  if (trace_ == nullptr) return work.wait();
  const bool blocks = !work.done();
  const double wait_began_us = trace_->now_us();
  work.wait();
  if (blocks) trace_->add(action, TraceLane::kWait, wait_began_us);
  trace_->add(action, lane, began_us);
}

std::vector<StageUnits> stage_units(const Model& model) {
  const auto units = model.units();
  std::vector<StageUnits> stages;
  for (std::size_t i = 0; i < model.stages().size(); ++i) {
    const StageLayers& own = model.stages()[i];
    stages.resize(static_cast<std::size_t>(own.stage) + 1);
    StageUnits& stage = stages.back();
    for (const auto& layer : model.layers_of(i)) {
      LayerUnits& uses = stage.emplace_back();
      for (const ParamUnit* unit : layer->units()) {
        const auto found = std::find_if(units.begin(), units.end(),
                                        [&](const auto& owned) { return owned.get() == unit; });
        uses.values.push_back(static_cast<int>(found - units.begin()));
        if (unit->trainable_numel() > 0) uses.grads.push_back(uses.values.back());
      }
    }
    if (own.begin == 0) stage.front().input_half_reads = false;
    if (own.end == model.spec().layers + 2) {
      stage.back().input_half_reads = false;
      stage.back().grads_in_forward = true;
    }
  }
  return stages;
}

WholeValues::WholeValues(ZeroUnits& units) : units_(units) {
  for_each_unit(ActionKind::kUnshard);
  units_.end_step();
}
WholeValues::~WholeValues() { for_each_unit(ActionKind::kReshard); }

void WholeValues::for_each_unit(ActionKind kind) {
  if (!units_.frees_values()) return;
  for (std::size_t i = 0; i < units_.shards().size(); ++i) {
    units_.execute(on_unit(0, kind, static_cast<int>(i)));
  }
}

}  // namespace quatrain
