// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/layer_timer.h"

#include <algorithm>

#include "quatrain/planner/collective.h"

namespace quatrain {
namespace {

// Traffic of kernels that only move data, a stashed byte: each tensor is written and read again,
// and as often once more for gradients. Checked by Korthikanti et al., arXiv:2205.05198, table 5.
constexpr double kForwardTraffic = 2.0, kInputTraffic = 3.0;
constexpr double kForwardKernels = 8, kInputKernels = 12;
// Kernels that eager software starts for a block.
constexpr double kForwardLaunches = 40, kInputLaunches = 80;
// A ring of keys and values hides under this share of the layer's work.
constexpr double kRingHidden = 0.5;
constexpr double kTheft = 0.1;  // hidden traffic slows what hides it by this share of itself

double bytes_of(Bytes bytes) { return static_cast<double>(bytes.value); }
double count(std::int64_t value) { return static_cast<double>(value); }

bool is_routed(const OpCost& op, bool sparse) {
  return sparse && (op.name == "up" || op.name == "down");
}

}  // namespace

void LayerTimes::add(const LayerTimes& layer, double times) {
  forward += times * layer.forward;
  input += times * layer.input;
  weight += times * layer.weight;
  tp += times * layer.tp;
  cp += times * layer.cp;
  ep += times * layer.ep;
  hiding += times * layer.hiding;
  stash += times * layer.stash;
  late += times * layer.late;
  growth = std::max(growth, layer.growth);
  working = std::max(working, layer.working);
  flops += times * layer.flops;
  parameters += times * layer.parameters;
  experts += times * layer.experts;
}

LayerTimer::LayerTimer(const Job& job, const Geometry& geometry, const ModelSpec& model)
    : job_(job),
      geometry_(geometry),
      model_(model),
      scale_(count(geometry.micro_batch) / geometry.cp),
      rows_(scale_ * count(job.seq)) {}

LayerTimes LayerTimer::block(const UnitCost& unit, double unrecomputed) const {
  const bool sparse = model_.layer_is_sparse(0);
  LayerTimes times = timed(unit, sparse);
  const bool full = geometry_.recompute == Recompute::kFull;
  times.tp = waited(times.tp);
  times.ep = waited(times.ep);
  keep(times, scale_ * unrecomputed);
  add_moving(times, scale_ * unrecomputed);
  times.forward = std::max(times.forward, kForwardLaunches * job_.cluster.host_seconds);
  times.input = std::max(times.input, kInputLaunches * job_.cluster.host_seconds);
  if (full) times.input += times.forward;
  if (geometry_.cp > 1) ring(times);
  return times;
}

LayerTimes LayerTimer::end(const UnitCost& unit) const {
  LayerTimes times = timed(unit, false);
  times.working = times.stash;
  add_moving(times, times.stash);
  return times;
}

LayerTimes LayerTimer::timed(const UnitCost& unit, bool sparse) const {
  LayerTimes times;
  for (const OpCost& op : unit.ops) {
    add_wire(times, op);
    add_computing(times, op, sparse);
    (is_routed(op, sparse) ? times.experts : times.parameters) += count(op.parameters);
  }
  const Flops flops = unit.forward() + unit.backward_input() + unit.backward_weight();
  times.flops = scale_ * flops.value;
  times.stash = scale_ * bytes_of(unit.stash());
  times.late = scale_ * bytes_of(unit.weight_stash());
  return times;
}

// What the layer keeps between its passes and holds at work.
void LayerTimer::keep(LayerTimes& times, double unrecomputed) const {
  const double factor = job_.cluster.stash_factor;
  times.working = factor * unrecomputed;
  if (geometry_.recompute != Recompute::kFull) times.stash *= factor;
  times.late *= factor;
  times.growth = std::max(0.0, times.late - times.stash);
}

// Of tp's and ep's traffic, what products do not hide.
double LayerTimer::waited(double seconds) const {
  const double hidden = job_.cluster.tensor_overlap * seconds;
  return seconds - hidden + kTheft * hidden;
}

void LayerTimer::add_moving(LayerTimes& times, double bytes) const {
  times.forward += moving_seconds(job_, kForwardTraffic * bytes, kForwardKernels);
  times.input += moving_seconds(job_, kInputTraffic * bytes, kInputKernels);
}

void LayerTimer::add_computing(LayerTimes& times, const OpCost& op, bool sparse) const {
  if (op.forward.value == 0) return;
  if (op.name == "attention") {
    const double flops = scale_ * op.forward.value;
    times.forward += attention_seconds(job_, flops);
    times.input += attention_backward_seconds(job_, 2 * flops);
    add_scores(times);
    return;
  }
  const Product p = product_of(op, sparse);
  if (is_routed(op, sparse) && op.name == "up") permute(times, p.m * p.count);
  const bool fp8 = job_.fp8_products && op.name != "head" && op.name != "router";
  const Precision precision = fp8 ? Precision::kFp8 : Precision::kJob;
  times.forward += product_seconds(job_, p, precision);
  times.input += product_seconds(job_, {p.m, p.k, p.n, p.count}, precision);
  if (op.backward_weight.value > 0) {
    times.weight += product_seconds(job_, {p.n, p.k, p.m, p.count}, precision);
  }
}

// Software that writes all scores moves as much again for their gradients.
void LayerTimer::add_scores(LayerTimes& times) const {
  const double scores = rows_ * count(job_.seq) * count(model_.heads) / geometry_.tp;
  const double moved = moving_seconds(job_, job_.cluster.score_bytes * scores, 0);
  times.forward += moved;
  times.input += moved;
}

// Inner length of the products that read the residual stream or a latent.
double LayerTimer::inner(const OpCost& op) const {
  if (model_.latent && op.name == "kv_b") return count(model_.latent->kv_lora_rank);
  if (model_.latent && op.name == "q" && model_.latent->q_lora_rank > 0) {
    return count(model_.latent->q_lora_rank);
  }
  return count(model_.hidden);
}

Product LayerTimer::product_of(const OpCost& op, bool sparse) const {
  const bool inwards = op.name == "out" || op.name == "down" || op.name == "shared_down";
  const bool own = op.name == "q_a" || op.name == "kv_a";
  const double flops = scale_ * op.forward.value;
  Product p;
  if (is_routed(op, sparse)) p.count = count(model_.experts->num_experts) / geometry_.ep;
  // Of experts, the rows that each gets; all else has every row, or this rank's.
  const double matrix = is_routed(op, sparse) ? count(op.parameters) / p.count : 0.0;
  p.m = own && geometry_.sequence_parallel ? rows_ / geometry_.tp : rows_;
  if (matrix > 0) p.m = std::max(1.0, flops / (2 * matrix * p.count));
  const double weights = flops / (2 * p.m * p.count);
  p.k = inwards ? weights / count(model_.hidden) : inner(op);
  p.n = weights / p.k;
  return p;
}

void LayerTimer::add_wire(LayerTimes& times, const OpCost& op) const {
  for (const OpWire& wire : op.wire) {
    const bool experts = wire.operation == CollectiveKind::kAllToAll;
    const bool reduce = wire.operation == CollectiveKind::kAllReduce;
    const GroupShape group =
        experts ? GroupShape{geometry_.ep, geometry_.etp} : GroupShape{geometry_.tp, 1};
    const CommKind kind = experts  ? CommKind::kAllToAll
                          : reduce ? CommKind::kAllReduce
                                   : CommKind::kAllGather;
    const double calls = count(wire.calls), n = group.size;
    if (n == 1) continue;
    const double sent = scale_ * bytes_of(wire.bytes) / calls;
    const double whole = sent * n / ((n - 1) * (reduce ? 2 : 1));
    (experts ? times.ep : times.tp) += calls * collective_seconds(job_.cluster, kind, group, whole);
  }
}

// Keys and values pass round once in the forward and, with their gradients, twice behind it.
void LayerTimer::ring(LayerTimes& times) const {
  const double heads = std::max(1.0, count(model_.kv_heads) / geometry_.tp);
  const double width = model_.latent
                           ? count(model_.latent->kv_lora_rank + model_.latent->qk_rope_head_dim)
                           : 2 * heads * count(model_.head_dim);
  const double bytes = rows_ * geometry_.cp * width * count(size_of(job_.dtype));
  const double once =
      collective_seconds(job_.cluster, CommKind::kAllGather, {geometry_.cp, geometry_.tp}, bytes);
  times.hiding = std::min(3 * once, kRingHidden * times.compute());
  times.cp = 3 * once - times.hiding + kTheft * 3 * once;
}

// Rows gathered by expert and put back: each is read and written twice, and once more for weights'
// gradients.
void LayerTimer::permute(LayerTimes& times, double rows) const {
  const double bytes = rows * count(model_.hidden) * count(size_of(job_.dtype));
  times.forward += moving_seconds(job_, 4 * bytes, 2);
  times.input += moving_seconds(job_, 6 * bytes, 3);
}

}  // namespace quatrain
