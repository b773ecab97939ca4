// SPDX-License-Identifier: Apache-2.0
// The walk: parameters from the one list of spec/, operations of blocks from block_ops.cc.
#include "quatrain/cost/walk.h"

#include <algorithm>
#include <span>
#include <string>

#include "quatrain/cost/block_ops.h"
#include "quatrain/cost/local.h"
#include "quatrain/cost/parameter_groups.h"
#include "quatrain/cost/residual.h"

namespace quatrain {
namespace {

UnitCost block(const ModelSpec& model, const WorkShape& shape, std::span<const LocalParameter> all,
               std::int64_t layer) {
  UnitCost unit;
  unit.name = "layers." + std::to_string(layer);
  unit.ops = block_ops(model, shape, layer, Cursor(all, layer));
  return unit;
}

UnitCost embedding(const ModelSpec& model, const WorkShape& shape,
                   std::span<const LocalParameter> all) {
  Cursor cursor(all, -1);
  const Group tokens = cursor.take(1);
  const Group positions = cursor.take(model.position == PositionKind::kLearned ? 1 : 0);
  cursor.check_done();
  const ResidualWire wire(shape, model.hidden);
  OpCost op = pointwise_op("embedding", tokens.numel() + positions.numel());
  if (tokens.trained() || positions.trained()) {
    op.late.push_back({"embedding.dy", {wire.own_rows() * model.hidden * size_of(shape.dtype)}});
  }
  wire.to_rows(op, ActionKind::kForward);
  if (tokens.trained()) wire.to_whole(op, ActionKind::kBackwardWeight);
  return {"embedding", {op}};
}

// In training the head's forward makes all three halves and keeps the gradient of its input.
UnitCost head(const ModelSpec& model, const WorkShape& shape, std::span<const LocalParameter> all) {
  const ResidualWire wire(shape, model.hidden);
  Cursor cursor(all, model.layers);
  const Group norm = cursor.take(model.norm == NormKind::kLayerNorm ? 2 : 1);
  const Group table = model.tied ? Cursor(all, -1).take(1) : cursor.take(1);
  cursor.check_done();
  OpCost product = linear_op("head", table, {}, wire.rows());
  if (model.tied) product.parameters = 0;
  product.stash.push_back(
      {"head.dx", {wire.own_rows() * model.hidden * size_of(shape.dtype)}, false});
  wire.to_whole(product, ActionKind::kForward);
  wire.loss_rows(product, shape.head_chunk_tokens);
  wire.to_rows(product, ActionKind::kForward);
  return {"head", {pointwise_op("norm", norm.numel()), product}};
}

}  // namespace

std::vector<UnitCost> walk(const ModelSpec& model, const WorkShape& shape) {
  const StageLayers all{0, 0, static_cast<int>(model.layers) + 2};
  return walk(model, shape, std::span(&all, 1));
}

std::vector<UnitCost> walk(const ModelSpec& model, const WorkShape& shape,
                           std::span<const StageLayers> stages) {
  // Patterns are those of the whole model.
  return walk(model, shape, stages,
              shape.trainable.empty() ? local_parameters(model, shape.split, stages)
                                      : trained_parameters(model, shape.split, shape.trainable));
}

std::vector<UnitCost> walk(const ModelSpec& model, const WorkShape& shape,
                           std::span<const StageLayers> stages,
                           std::span<const LocalParameter> all) {
  std::vector<UnitCost> units(static_cast<std::size_t>(model.layers) + 2);
  for (const StageLayers& stage : stages) {
    for (int layer = stage.begin; layer < stage.end; ++layer) {
      UnitCost& unit = units[static_cast<std::size_t>(layer)];
      if (layer == 0) {
        unit = embedding(model, shape, all);
      } else if (layer <= model.layers) {
        unit = block(model, shape, all, layer - 1);
      } else {
        unit = head(model, shape, all);
      }
    }
  }
  return units;
}

WorkShape work_shape(const Plan& plan, int rank) {
  WorkShape shape;
  shape.batch = plan.microbatch_size;
  shape.context = context_split(plan, rank);
  shape.seq = shape.context.tokens(plan.seq_len);
  shape.whole_seq = plan.seq_len;
  shape.dtype = plan.dtype;
  shape.recompute = plan.recompute;
  shape.split = tensor_split(plan, rank);
  shape.gather_again = plan.gather_again;
  shape.overlap_chunks = plan.overlap_chunks;
  shape.ep_chunks = plan.ep_chunks;
  return shape;
}

Bytes message_bytes(const ModelSpec& model, const WorkShape& shape) {
  const std::int64_t rows = ResidualWire(shape, model.hidden).own_rows();
  return {rows * model.hidden * size_of(shape.dtype)};
}

Bytes logits_bytes(const ModelSpec& model, const WorkShape& shape) {
  const std::int64_t rows = std::min(shape.batch * shape.seq, shape.head_chunk_tokens);
  return {rows * local_sizes(model, shape.split).vocab * size_of(shape.dtype)};
}

Flops model_flops(const ModelSpec& model, std::int64_t sequences, std::int64_t seq,
                  const std::vector<std::string>& trainable) {
  WorkShape shape;
  shape.seq = seq;
  shape.trainable = trainable;
  Flops total{};
  for (const UnitCost& unit : walk(model, shape)) {
    total += unit.forward() + unit.backward_input() + unit.backward_weight();
  }
  return static_cast<double>(sequences) * total;
}

double mfu(Flops model_flops, Seconds time, FlopsPerSecond peak) {
  return model_flops.value / (time.value * peak.value);
}

}  // namespace quatrain
