// SPDX-License-Identifier: Apache-2.0
// FLOPs of matrix products are 2 m n k each; attention has 2 d for each of its products and visible
// pair; what is kept is in stash_table.cc. The operations of a dense block are norm1, qkv,
// attention, out, norm2, up, down.
#include "quatrain/cost/block_ops.h"

#include <algorithm>

#include "quatrain/base/check.h"
#include "quatrain/cost/local.h"
#include "quatrain/cost/residual.h"

namespace quatrain {

OpCost linear_op(std::string name, const Group& weight, const Group& bias, std::int64_t rows) {
  OpCost op = pointwise_op(std::move(name), weight.numel() + bias.numel());
  op.forward = op.backward_input = {static_cast<double>(2 * rows * weight.numel())};
  op.backward_weight = {static_cast<double>(2 * rows * weight.trained_numel())};
  return op;
}

OpCost pointwise_op(std::string name, std::int64_t parameters) {
  OpCost op;
  op.name = std::move(name);
  op.parameters = parameters;
  return op;
}

OpCost& op_named(std::vector<OpCost>& ops, std::string_view name) {
  const auto found =
      std::find_if(ops.begin(), ops.end(), [&](const OpCost& op) { return op.name == name; });
  CHECK(found != ops.end(), "the block has no operation {}", name);
  return *found;
}

std::int64_t visible_pairs(const WorkShape& shape, std::int64_t heads, std::int64_t window) {
  const ContextSplit& context = shape.context;
  const std::int64_t seq = context.degree > 1 ? shape.whole_seq : shape.seq;
  std::int64_t pairs = 0;
  for (const Range& queries : context.of_place(seq, context.place())) {
    pairs += causal_pairs(queries, {0, seq}, window);
  }
  if (context.heads > 1) return shape.batch * pairs * (heads / context.heads);
  return shape.batch * pairs * heads;
}

namespace {

std::size_t count_if(bool there, std::size_t count) { return there ? count : 0; }

BlockDims block_dims(const ModelSpec& model, const WorkShape& shape) {
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
  dims.context_heads = shape.context.heads;
  dims.place_tokens = shape.context.heads > 1
                          ? total(shape.context.of_place(shape.whole_seq, shape.context.place()))
                          : shape.seq;
  return dims;
}

struct NormTrained {
  bool gain, bias;
};
NormTrained norm_ops(std::vector<OpCost>& ops, const char* name, const ModelSpec& model,
                     Cursor& cursor) {
  const Group gain = cursor.take(1);
  const Group bias = cursor.take(count_if(model.norm == NormKind::kLayerNorm, 1));
  ops.push_back(pointwise_op(name, gain.numel() + bias.numel()));
  return {gain.trained(), bias.trained()};
}

void attention_ops(std::vector<OpCost>& ops, const ModelSpec& model, const WorkShape& shape,
                   std::int64_t layer, Cursor& cursor, BlockDims& dims) {
  const Group qkv = cursor.take(3), qkv_bias = cursor.take(count_if(model.qkv_bias, 3));
  const Group q_norm = cursor.take(count_if(model.qk_norm, 1));
  const Group k_norm = cursor.take(count_if(model.qk_norm, 1));
  const Group out = cursor.take(1), out_bias = cursor.take(count_if(model.out_bias, 1));
  const std::int64_t rows = shape.batch * shape.seq;
  ops.push_back(linear_op("qkv", qkv, qkv_bias, rows));
  OpCost& op = ops.emplace_back(pointwise_op("attention", q_norm.numel() + k_norm.numel()));
  const std::int64_t pairs = visible_pairs(shape, dims.heads, model.layer_window(layer));
  const std::int64_t products = 4 * model.head_dim;  // scores, and values weighted by them
  op.forward = {static_cast<double>(pairs * products)};
  op.backward_input = {static_cast<double>(2 * pairs * products)};
  ops.push_back(linear_op("out", out, out_bias, rows));
  BlockTraining& train = dims.train;
  train.qkv = qkv.trained();
  train.qkv_bias = qkv_bias.trained();
  train.q_norm = q_norm.trained();
  train.k_norm = k_norm.trained();
  train.out = out.trained();
  train.out_bias = out_bias.trained();
}

void mlp_ops(std::vector<OpCost>& ops, const ModelSpec& model, const WorkShape& shape,
             Cursor& cursor, BlockDims& dims) {
  const std::size_t matrices = model.mlp == MlpKind::kSwiGlu ? 2 : 1;
  const Group up = cursor.take(matrices), up_bias = cursor.take(count_if(model.mlp_bias, matrices));
  const Group down = cursor.take(1), down_bias = cursor.take(count_if(model.mlp_bias, 1));
  const std::int64_t rows = shape.batch * shape.seq;
  ops.push_back(linear_op("up", up, up_bias, rows));
  ops.push_back(linear_op("down", down, down_bias, rows));
  BlockTraining& train = dims.train;
  train.up = up.trained();
  train.up_bias = up_bias.trained();
  train.down = down.trained();
  train.down_bias = down_bias.trained();
}

// Between norm and residual the rows are whole: a column-parallel product gathers what it reads, a
// row-parallel one is summed; the input half goes the same way back.
struct ParallelPair {
  OpCost& column;
  OpCost& row;
  bool column_trained, row_trained;
  bool last = false;  // of the block: a rerun leaves the sum out
};
void pair_wire(const ParallelPair& pair, const ModelSpec& model, const WorkShape& shape) {
  using enum ActionKind;
  const ResidualWire wire(shape, model.hidden);
  for (const ActionKind pass : {kForward, kBackwardInput}) {
    const bool rerun = pass == kBackwardInput;
    if (rerun && shape.recompute != Recompute::kFull) continue;
    wire.to_whole(pair.column, pass);
    if (!(rerun && pair.last)) wire.to_rows_in_chunks(pair.row, pass);
  }
  wire.to_whole(pair.row, kBackwardInput);
  wire.to_rows(pair.column, kBackwardInput);
  if (!gathers_again(shape)) return;
  if (pair.column_trained) wire.to_whole(pair.column, kBackwardWeight);
  if (pair.row_trained && !shape.fused_backward) wire.to_whole(pair.row, kBackwardWeight);
}

void block_wire(std::vector<OpCost>& ops, const ModelSpec& model, const WorkShape& shape,
                const BlockDims& dims) {
  const BlockTraining& train = dims.train;
  if (dims.latent) {
    latent_attention_wire(ops, model, shape, dims);
  } else {
    pair_wire({op_named(ops, "qkv"), op_named(ops, "out"), train.qkv, train.out}, model, shape);
  }
  context_wire(ops, shape, dims);
  if (dims.mixture && dims.mixture->counts_sequences) sequence_counts_wire(ops, shape, dims);
  if (dims.mixture) {
    mixture_wire(ops, model, shape, dims);
  } else {
    pair_wire({op_named(ops, "up"), op_named(ops, "down"), train.up, train.down, true}, model,
              shape);
  }
}

}  // namespace

bool makes_result(const OpCost& op) { return op.name == "down" || op.name == "shared_down"; }

std::vector<OpCost> block_ops(const ModelSpec& model, const WorkShape& shape, std::int64_t layer,
                              Cursor cursor) {
  std::vector<OpCost> ops;
  BlockDims dims = block_dims(model, shape);
  const NormTrained norm1 = norm_ops(ops, "norm1", model, cursor);
  if (model.latent) {
    latent_attention_ops(ops, model, shape, cursor, dims);
  } else {
    attention_ops(ops, model, shape, layer, cursor, dims);
  }
  const NormTrained norm2 = norm_ops(ops, "norm2", model, cursor);
  if (model.layer_is_sparse(layer)) {
    mixture_ops(ops, model, shape, cursor, dims);
  } else {
    mlp_ops(ops, model, shape, cursor, dims);
  }
  cursor.check_done();
  dims.train.norm1 = norm1.gain;
  dims.train.norm1_bias = norm1.bias;
  dims.train.norm2 = norm2.gain;
  dims.train.norm2_bias = norm2.bias;
  if (shape.recompute == Recompute::kFull) {
    for (OpCost& op : ops) {
      if (!makes_result(op)) op.backward_input += op.forward;
    }
  }
  BlockKeeps keeps;
  keeps.recompute = shape.recompute;
  keeps.gather_again = gathers_again(shape);
  keeps.fused_backward = shape.fused_backward;
  add_rows(ops, block_stash(dims, keeps), shape.dtype);
  block_wire(ops, model, shape, dims);
  return ops;
}

}  // namespace quatrain
