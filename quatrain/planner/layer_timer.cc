// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/layer_timer.h"

#include <algorithm>
#include <utility>

#include "quatrain/planner/collective.h"
#include "quatrain/planner/context_time.h"

namespace quatrain {
namespace {

// Traffic of kernels that only move data, a stashed byte: each tensor is written and read again,
// and as often once more for gradients. Checked by Korthikanti et al., arXiv:2205.05198, table 5.
constexpr double kForwardTraffic = 2.0, kInputTraffic = 3.0;
constexpr double kForwardKernels = 8, kInputKernels = 12;
// Bytes kept a score by software that has them in memory: what the softmax made, dropout's mask and
// what it left (Korthikanti et al., 4.1).
constexpr double kKeptOfScore = 5;
// Kernels that eager software starts for a block.
constexpr double kForwardLaunches = 40, kInputLaunches = 80;

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
  hiding_input += times * layer.hiding_input;
  stash += times * layer.stash;
  late += times * layer.late;
  growth = std::max(growth, layer.growth);
  working = std::max(working, layer.working);
  flops += times * layer.flops;
  parameters += times * layer.parameters;
  experts += times * layer.experts;
}

void LayerTimes::put_all_into_forward() {
  forward += std::exchange(input, 0.0) + std::exchange(weight, 0.0);
}

LayerTimer::LayerTimer(const Job& job, const Geometry& geometry, const ModelSpec& model,
                       const WorkShape& shape)
    : job_(job),
      geometry_(geometry),
      model_(model),
      shape_(shape),
      scale_(count(geometry.micro_batch)),
      rows_(scale_ * count(shape.seq)) {}

LayerTimes LayerTimer::block(const UnitCost& unit, double unrecomputed) const {
  const bool sparse = model_.layer_is_sparse(0);
  LayerTimes times = timed(unit, sparse);
  times.tp = waited(times.tp);
  times.ep = waited(times.ep);
  keep(times, scale_ * unrecomputed);
  add_moving(times, scale_ * unrecomputed);
  times.forward = std::max(times.forward, kForwardLaunches * job_.cluster.host_seconds);
  times.input = std::max(times.input, kInputLaunches * job_.cluster.host_seconds);
  times.input += made_again(times);
  return times;
}

double LayerTimer::made_again(const LayerTimes& times) const {
  switch (geometry_.recompute) {
    case Recompute::kFull:
      return times.forward - (1 - job_.cluster.whole_again) * times.last_product;
    case Recompute::kSelective:
      return job_.cluster.remade * times.products;
    default:
      return 0;
  }
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
  times.working += factor * unrecomputed;
  if (geometry_.recompute != Recompute::kFull) times.stash *= factor;
  if (geometry_.recompute == Recompute::kNone) times.stash += times.scores;
  times.working += times.scores;
  times.late *= factor;
  times.growth = std::max(0.0, times.late - times.stash);
}

// Of tp's and ep's traffic, what products do not hide.
double LayerTimer::waited(double seconds) const {
  const double hidden = job_.cluster.tensor_overlap * seconds;
  return seconds - hidden + job_.cluster.theft * hidden;
}

void LayerTimer::add_moving(LayerTimes& times, double bytes) const {
  const double moved = job_.cluster.pass_factor * bytes;
  times.forward += moving_seconds(job_, kForwardTraffic * moved, kForwardKernels);
  times.input += moving_seconds(job_, kInputTraffic * moved, kInputKernels);
}

void LayerTimer::add_computing(LayerTimes& times, const OpCost& op, bool sparse) const {
  if (op.forward.value == 0) return;
  if (op.name == "attention") return add_attention(times, op);
  const Product p = product_of(op, sparse);
  if (is_routed(op, sparse) && op.name == "up") permute(times, p.m * p.count);
  const bool fp8 = job_.fp8_products && op.name != "head" && op.name != "router";
  const Precision precision = fp8 ? Precision::kFp8 : Precision::kJob;
  const double forward = product_seconds(job_, p, precision);
  times.forward += forward;
  times.products += forward;
  if (makes_result(op)) times.last_product += forward;
  times.input += product_seconds(job_, {p.m, p.k, p.n, p.count}, precision);
  if (op.backward_weight.value > 0) {
    times.weight += product_seconds(job_, {p.n, p.k, p.m, p.count}, precision, true);
  }
}

void LayerTimer::add_attention(LayerTimes& times, const OpCost& op) const {
  // With its scores in memory, all pairs are multiplied.
  const double flops = (keeps_scores() ? 2 : 1) * scale_ * op.forward.value;
  const double forward = attention_seconds(job_, flops);
  const double input = attention_backward_seconds(job_, 2 * flops);
  times.forward += forward;
  times.input += input;
  add_scores(times);
  if (geometry_.cp == 1) return;
  const ContextTimes shared = context_times(job_, shape_, model_, op, {scale_, forward, input});
  times.forward += shared.forward;
  times.input += shared.input;
  times.cp += shared.exposed + job_.cluster.theft * shared.hidden;
  times.hiding += shared.hidden;
  times.hiding_input += shared.hidden_input;
  times.working += shared.working;
}

// Software that writes all scores moves as much again for their gradients, and once more where it
// makes them again.
void LayerTimer::add_scores(LayerTimes& times) const {
  if (!keeps_scores()) return;
  const double scores = rows_ * count(job_.seq) * count(model_.heads) / geometry_.tp;
  const double moved = moving_seconds(job_, job_.cluster.score_bytes * scores, 0);
  times.forward += moved;
  times.input += geometry_.recompute == Recompute::kSelective ? 2 * moved : moved;
  times.scores = kKeptOfScore * scores;
}

// Inner length of the products that read the residual stream or a latent.
double LayerTimer::inner(const OpCost& op) const {
  if (model_.latent && op.name == "kv_b") return count(model_.latent->kv_lora_rank);
  if (model_.latent && op.name == "q" && model_.latent->q_lora_rank > 0) {
    return count(model_.latent->q_lora_rank);
  }
  return count(model_.hidden);
}

// All others wait for the rank that gets most rows, which is at most all of them.
double LayerTimer::crowding() const {
  return std::min(job_.expert_imbalance, static_cast<double>(geometry_.ep));
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
  if (is_routed(op, sparse)) p.m *= crowding();
  return p;
}

void LayerTimer::add_wire(LayerTimes& times, const OpCost& op) const {
  for (const OpWire& wire : op.wire) {
    const bool experts = wire.axes == AxisSet(Axis::kEp);
    const bool sequences = wire.axes == AxisSet(Axis::kCp);
    if (sequences && op.name == "attention") continue;  // add_attention()'s
    const bool reduce = wire.operation == CollectiveKind::kAllReduce;
    const GroupShape group = experts     ? GroupShape{geometry_.ep, geometry_.etp}
                             : sequences ? GroupShape{geometry_.cp, geometry_.tp}
                                         : GroupShape{geometry_.tp, 1};
    const CommKind kind = experts  ? CommKind::kAllToAll
                          : reduce ? CommKind::kAllReduce
                                   : CommKind::kAllGather;
    const bool twice = geometry_.recompute == Recompute::kFull && makes_result(op) &&
                       wire.pass == ActionKind::kForward;
    const double calls = count(wire.calls) * (twice ? 1 + job_.cluster.whole_again : 1.0);
    const double n = group.size;
    if (n == 1) continue;
    const double sent =
        scale_ * bytes_of(wire.bytes) / count(wire.calls) * (experts ? crowding() : 1.0);
    const double whole = sent * n / ((n - 1) * (reduce ? 2 : 1));
    double& waits = experts ? times.ep : sequences ? times.cp : times.tp;
    waits += calls * collective_seconds(job_.cluster, kind, group, whole);
  }
}

// Rows gathered by expert and put back: each is read and written twice, and once more for weights'
// gradients.
void LayerTimer::permute(LayerTimes& times, double rows) const {
  const double bytes = rows * count(model_.hidden) * count(size_of(job_.dtype));
  times.forward += moving_seconds(job_, 4 * bytes, 2);
  times.input += moving_seconds(job_, 6 * bytes, 3);
}

}  // namespace quatrain
