// SPDX-License-Identifier: Apache-2.0
// The walk: parameters from the one list of spec/, FLOPs of matrix products (2 m n k each;
// attention 2 d FLOPs for each product and visible pair), stash from the table in stash_table.cc.
#include "quatrain/cost/walk.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "quatrain/base/check.h"
#include "quatrain/base/error.h"
#include "quatrain/cost/local.h"
#include "quatrain/cost/residual.h"
#include "quatrain/cost/stash_table.h"

namespace quatrain {
namespace {

// Neighbouring parameters that are computed with as one.
struct Group {
  std::span<const LocalParameter> list;
  std::int64_t numel() const {
    std::int64_t sum = 0;
    for (const LocalParameter& p : list) sum += p.box.numel();
    return sum;
  }
  std::int64_t trained_numel() const {
    std::int64_t sum = 0;
    for (const LocalParameter& p : list) sum += p.info.trainable ? p.box.numel() : 0;
    return sum;
  }
  bool trained() const { return trained_numel() > 0; }
};

// Deals a unit's parameters out in the order in which parameters() lists them.
class Cursor {
 public:
  Cursor(std::span<const LocalParameter> all, std::int64_t layer) {
    const auto of_layer = [layer](const LocalParameter& p) { return p.info.layer == layer; };
    const auto begin = std::find_if(all.begin(), all.end(), of_layer);
    const auto end = std::find_if_not(begin, all.end(), of_layer);
    rest_ = all.subspan(static_cast<std::size_t>(begin - all.begin()),
                        static_cast<std::size_t>(end - begin));
  }
  Group take(std::size_t count) {
    CHECK(count <= rest_.size(), "{} parameters left of a unit, {} wanted", rest_.size(), count);
    Group group{rest_.first(count)};
    rest_ = rest_.subspan(count);
    return group;
  }
  void check_done() const {
    CHECK(rest_.empty(), "parameter {} has no operation", rest_.front().info.name);
  }

 private:
  std::span<const LocalParameter> rest_;
};

struct BlockGroups {
  Group norm1, norm1_bias, qkv, qkv_bias, q_norm, k_norm, out, out_bias;
  Group norm2, norm2_bias, up, up_bias, down, down_bias;
};

BlockGroups block_groups(const ModelSpec& model, std::span<const LocalParameter> all,
                         std::int64_t layer) {
  const auto if_any = [](bool there, std::size_t count) { return there ? count : 0; };
  const std::size_t norm_bias = model.norm == NormKind::kLayerNorm ? 1 : 0;
  const std::size_t up = model.mlp == MlpKind::kSwiGlu ? 2 : 1;
  Cursor cursor(all, layer);
  BlockGroups g;
  g.norm1 = cursor.take(1);
  g.norm1_bias = cursor.take(norm_bias);
  g.qkv = cursor.take(3);
  g.qkv_bias = cursor.take(if_any(model.qkv_bias, 3));
  g.q_norm = cursor.take(if_any(model.qk_norm, 1));
  g.k_norm = cursor.take(if_any(model.qk_norm, 1));
  g.out = cursor.take(1);
  g.out_bias = cursor.take(if_any(model.out_bias, 1));
  g.norm2 = cursor.take(1);
  g.norm2_bias = cursor.take(norm_bias);
  g.up = cursor.take(up);
  g.up_bias = cursor.take(if_any(model.mlp_bias, up));
  g.down = cursor.take(1);
  g.down_bias = cursor.take(if_any(model.mlp_bias, 1));
  cursor.check_done();
  return g;
}

Flops flops(std::int64_t count) { return {static_cast<double>(count)}; }

// y = x W^T + b over `rows` rows, as all three passes.
OpCost linear(std::string name, const Group& weight, const Group& bias, std::int64_t rows) {
  OpCost op;
  op.name = std::move(name);
  op.parameters = weight.numel() + bias.numel();
  op.forward = op.backward_input = flops(2 * rows * weight.numel());
  op.backward_weight = flops(2 * rows * weight.trained_numel());
  return op;
}

OpCost pointwise(std::string name, std::int64_t parameters) {
  OpCost op;
  op.name = std::move(name);
  op.parameters = parameters;
  return op;
}

// Keys that the queries of one causal sequence see, all queries together.
std::int64_t visible_pairs(std::int64_t seq, std::int64_t window) {
  const std::int64_t full = window > 0 ? std::min(window, seq) : seq;
  return full * (full + 1) / 2 + (seq - full) * full;
}

OpCost attention(const ModelSpec& model, const WorkShape& shape, std::int64_t layer,
                 std::int64_t head_norms) {
  OpCost op = pointwise("attention", head_norms);
  const std::int64_t pairs = shape.batch * visible_pairs(shape.seq, model.layer_window(layer));
  const std::int64_t products = 4 * model.head_dim;  // scores, and values weighted by them
  const std::int64_t heads = local_sizes(model, shape.split).heads;
  op.forward = flops(pairs * heads * products);
  op.backward_input = flops(2 * pairs * heads * products);
  return op;
}

BlockDims block_dims(const ModelSpec& model, const WorkShape& shape, const BlockGroups& g) {
  const LocalSizes own = local_sizes(model, shape.split);
  BlockDims dims;
  dims.batch = shape.batch;
  dims.seq = shape.seq;
  dims.own_rows = ResidualWire(shape, model.hidden).own_rows();
  dims.gain_sums = cuts_rows(shape.split) ? 1 : shape.batch;
  dims.hidden = model.hidden;
  dims.heads = own.heads;
  dims.kv_heads = own.kv_heads;
  dims.head_dim = model.head_dim;
  dims.ffn = own.ffn;
  dims.up_width = model.mlp == MlpKind::kSwiGlu ? 2 * own.ffn : own.ffn;
  dims.centred_norm = model.norm == NormKind::kLayerNorm;
  dims.qk_norm = model.qk_norm;
  BlockTraining& train = dims.train;
  train.norm1 = g.norm1.trained();
  train.norm1_bias = g.norm1_bias.trained();
  train.qkv = g.qkv.trained();
  train.qkv_bias = g.qkv_bias.trained();
  train.q_norm = g.q_norm.trained();
  train.k_norm = g.k_norm.trained();
  train.out = g.out.trained();
  train.out_bias = g.out_bias.trained();
  train.norm2 = g.norm2.trained();
  train.norm2_bias = g.norm2_bias.trained();
  train.up = g.up.trained();
  train.up_bias = g.up_bias.trained();
  train.down = g.down.trained();
  train.down_bias = g.down_bias.trained();
  return dims;
}

// Between norm and residual the rows are whole: a column-parallel product gathers what it reads, a
// row-parallel one is summed; the input half goes the same way back.
void block_wire(std::vector<OpCost>& ops, const ModelSpec& model, const WorkShape& shape,
                const BlockTraining& train) {
  using enum ActionKind;
  const ResidualWire wire(shape, model.hidden);
  OpCost &qkv = ops[1], &out = ops[3], &up = ops[5], &down = ops[6];
  const auto forward = [&](ActionKind pass) {
    wire.to_whole(qkv, pass);
    wire.to_rows_in_chunks(out, pass);
    wire.to_whole(up, pass);
    wire.to_rows_in_chunks(down, pass);
  };
  forward(kForward);
  if (shape.recompute == Recompute::kFull) forward(kBackwardInput);
  for (OpCost* row_parallel : {&down, &out}) wire.to_whole(*row_parallel, kBackwardInput);
  for (OpCost* column_parallel : {&up, &qkv}) wire.to_rows(*column_parallel, kBackwardInput);
  if (!gathers_again(shape)) return;
  if (train.up) wire.to_whole(up, kBackwardWeight);
  if (train.qkv) wire.to_whole(qkv, kBackwardWeight);
  if (shape.fused_backward) return;
  if (train.down) wire.to_whole(down, kBackwardWeight);
  if (train.out) wire.to_whole(out, kBackwardWeight);
}

UnitCost block(const ModelSpec& model, const WorkShape& shape, std::span<const LocalParameter> all,
               std::int64_t layer) {
  const BlockGroups g = block_groups(model, all, layer);
  const std::int64_t rows = shape.batch * shape.seq;
  UnitCost unit;
  unit.name = "layers." + std::to_string(layer);
  unit.ops = {pointwise("norm1", g.norm1.numel() + g.norm1_bias.numel()),
              linear("qkv", g.qkv, g.qkv_bias, rows),
              attention(model, shape, layer, g.q_norm.numel() + g.k_norm.numel()),
              linear("out", g.out, g.out_bias, rows),
              pointwise("norm2", g.norm2.numel() + g.norm2_bias.numel()),
              linear("up", g.up, g.up_bias, rows),
              linear("down", g.down, g.down_bias, rows)};
  if (shape.recompute == Recompute::kFull) {
    for (OpCost& op : unit.ops) op.backward_input += op.forward;
  }
  BlockKeeps keeps;
  keeps.recompute = shape.recompute;
  keeps.gather_again = gathers_again(shape);
  keeps.fused_backward = shape.fused_backward;
  const BlockDims dims = block_dims(model, shape, g);
  add_rows(unit.ops, block_stash(dims, keeps), shape.dtype);
  block_wire(unit.ops, model, shape, dims.train);
  return unit;
}

UnitCost embedding(const ModelSpec& model, const WorkShape& shape,
                   std::span<const LocalParameter> all) {
  Cursor cursor(all, -1);
  const Group tokens = cursor.take(1);
  const Group positions = cursor.take(model.position == PositionKind::kLearned ? 1 : 0);
  cursor.check_done();
  const ResidualWire wire(shape, model.hidden);
  OpCost op = pointwise("embedding", tokens.numel() + positions.numel());
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
  OpCost product = linear("head", table, {}, wire.rows());
  if (model.tied) product.parameters = 0;
  product.stash.push_back(
      {"head.dx", {wire.own_rows() * model.hidden * size_of(shape.dtype)}, false});
  wire.to_whole(product, ActionKind::kForward);
  wire.loss_rows(product, shape.head_chunk_tokens);
  wire.to_rows(product, ActionKind::kForward);
  return {"head", {pointwise("norm", norm.numel()), product}};
}

void require_dense(const ModelSpec& model) {
  if (!model.experts && !model.latent) return;
  throw ConfigError("the cost of " + model.name + " is not known: models with experts or latent " +
                    "attention cannot be trained yet; dense ones of the gpt2, llama, qwen2 and " +
                    "qwen3 families can");
}

}  // namespace

std::vector<UnitCost> walk(const ModelSpec& model, const WorkShape& shape) {
  const StageLayers all{0, 0, static_cast<int>(model.layers) + 2};
  return walk(model, shape, std::span(&all, 1));
}

std::vector<UnitCost> walk(const ModelSpec& model, const WorkShape& shape,
                           std::span<const StageLayers> stages) {
  require_dense(model);
  const std::vector<LocalParameter> all = trained_parameters(model, shape.split, shape.trainable);
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
  shape.seq = plan.seq_len;
  shape.dtype = plan.dtype;
  shape.recompute = plan.recompute;
  shape.split = tensor_split(plan, rank);
  shape.gather_again = plan.gather_again;
  shape.overlap_chunks = plan.overlap_chunks;
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
