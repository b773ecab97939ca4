// SPDX-License-Identifier: Apache-2.0
// Operations of latent attention (q_a, kv_a, q, kv_b, attention, out) and of a mixture of experts
// (router, up, down, shared_up, shared_down). FLOPs of experts depend on how many rows they get,
// not on how these are spread, while all experts are trained; where some are frozen an even spread
// is taken.
#include <cstddef>

#include "quatrain/cost/block_ops.h"
#include "quatrain/cost/local.h"
#include "quatrain/cost/residual.h"

namespace quatrain {
namespace {

// Gate, up and down of every routed expert, one expert after another.
struct ExpertNumbers {
  std::int64_t up = 0, down = 0, up_trained = 0, down_trained = 0;
};
ExpertNumbers expert_numbers(const Group& experts) {
  ExpertNumbers sum;
  for (std::size_t i = 0; i < experts.list.size(); ++i) {
    const LocalParameter& p = experts.list[i];
    const std::int64_t numel = p.box.numel(), trained = p.info.trainable ? numel : 0;
    (i % 3 < 2 ? sum.up : sum.down) += numel;
    (i % 3 < 2 ? sum.up_trained : sum.down_trained) += trained;
  }
  return sum;
}

OpCost experts_op(const char* name, std::int64_t numel, std::int64_t trained, std::int64_t held,
                  std::int64_t rows) {
  OpCost op = pointwise_op(name, numel);
  const auto flops = [&](std::int64_t matrices) -> Flops {
    return {static_cast<double>(2 * rows * matrices) / static_cast<double>(held)};
  };
  op.forward = op.backward_input = flops(numel);
  op.backward_weight = flops(trained);
  return op;
}

Flops product(std::int64_t rows, std::int64_t matrix) {
  return {static_cast<double>(2 * rows * matrix)};
}

}  // namespace

void latent_attention_ops(std::vector<OpCost>& ops, const ModelSpec& model, const WorkShape& shape,
                          Cursor& cursor, BlockDims& dims) {
  const LatentAttention& latent = *model.latent;
  const bool compressed = latent.q_lora_rank > 0;
  const std::int64_t rows = shape.batch * shape.seq;
  LatentDims& l = dims.latent.emplace();
  l = {.q_rank = latent.q_lora_rank,
       .kv_rank = latent.kv_lora_rank,
       .nope = latent.qk_nope_head_dim,
       .rope = latent.qk_rope_head_dim,
       .value = latent.v_head_dim};
  const Group q_a = cursor.take(compressed ? 1 : 0), q_norm = cursor.take(compressed ? 1 : 0);
  const Group q = cursor.take(1), kv_a = cursor.take(1), kv_norm = cursor.take(1);
  const Group kv_b = cursor.take(1), out = cursor.take(1);
  const Group out_bias = cursor.take(model.out_bias ? 1 : 0);
  if (compressed) {
    ops.push_back(linear_op("q_a", q_a, {}, dims.own_rows));
    ops.back().parameters += q_norm.numel();
  }
  ops.push_back(linear_op("q", q, {}, rows));
  ops.push_back(linear_op("kv_a", kv_a, {}, dims.own_rows));
  ops.back().parameters += kv_norm.numel();
  ops.push_back(linear_op("kv_b", kv_b, {}, rows));
  OpCost& attention = ops.emplace_back(pointwise_op("attention", 0));
  const std::int64_t pairs = visible_pairs(shape, dims.heads, 0);
  attention.forward = product(pairs, l.nope + l.rope + l.value);
  attention.backward_input = 2.0 * attention.forward;
  ops.push_back(linear_op("out", out, out_bias, rows));
  l.q_a = q_a.trained();
  l.q_norm = q_norm.trained();
  l.q = q.trained();
  l.kv_a = kv_a.trained();
  l.kv_norm = kv_norm.trained();
  l.kv_b = kv_b.trained();
  dims.train.out = out.trained();
  dims.train.out_bias = out_bias.trained();
}

void latent_attention_wire(std::vector<OpCost>& ops, const ModelSpec& model, const WorkShape& shape,
                           const BlockDims& dims) {
  using enum ActionKind;
  const LatentDims& l = *dims.latent;
  OpCost &q = op_named(ops, "q"), &kv = op_named(ops, "kv_b"), &out = op_named(ops, "out");
  const ResidualWire stream(shape, model.hidden);
  const ResidualWire queries(shape, l.q_rank > 0 ? l.q_rank : model.hidden);
  const ResidualWire latents(shape, l.kv_rank + l.rope);
  for (const ActionKind pass : {kForward, kBackwardInput}) {
    if (pass == kBackwardInput && shape.recompute != Recompute::kFull) continue;
    queries.to_whole(q, pass);
    latents.to_whole(kv, pass);
    stream.to_rows_in_chunks(out, pass);
  }
  stream.to_whole(out, kBackwardInput);
  latents.to_rows(kv, kBackwardInput);
  queries.to_rows(q, kBackwardInput);
  if (!gathers_again(shape)) return;
  if (l.q) queries.to_whole(q, kBackwardWeight);
  if (l.kv_b) latents.to_whole(kv, kBackwardWeight);
  if (dims.train.out && !shape.fused_backward) stream.to_whole(out, kBackwardWeight);
}

void mixture_ops(std::vector<OpCost>& ops, const ModelSpec& model, const WorkShape& shape,
                 Cursor& cursor, BlockDims& dims) {
  const Experts& experts = *model.experts;
  const std::int64_t rows = shape.batch * shape.seq;
  const Group router = cursor.take(1), bias = cursor.take(experts.selection_bias ? 1 : 0);
  const auto routed = static_cast<std::size_t>(experts.num_experts);
  const ExpertNumbers numbers = expert_numbers(cursor.take(3 * routed));
  ops.push_back(linear_op("router", router, {}, rows));
  ops.back().parameters += bias.numel();
  ops.back().backward_input = product(dims.own_rows, router.numel());
  const LocalSizes own = local_sizes(model, shape.split);
  MixtureDims& m = dims.mixture.emplace();
  m.rows = expert_load(model, shape).arrived();
  m.held = shape.split.expert_split().held(experts.num_experts).size();
  m.exchange = shape.split.exchange_ranks();
  m.counts_sequences =
      shape.context.degree > 1 && experts.aux_loss_coef != 0.0 && !shape.global_balance;
  ops.push_back(experts_op("up", numbers.up, numbers.up_trained, m.held, m.rows));
  ops.push_back(experts_op("down", numbers.down, numbers.down_trained, m.held, m.rows));
  m.experts = experts.num_experts;
  m.top_k = experts.top_k;
  m.ffn = own.expert_ffn;
  m.shared = own.shared_ffn;
  m.router = router.trained();
  m.up = numbers.up_trained > 0;
  m.down = numbers.down_trained > 0;
  if (experts.num_shared == 0) return;
  const Group shared_up = cursor.take(2), shared_down = cursor.take(1);
  ops.push_back(linear_op("shared_up", shared_up, {}, rows));
  ops.push_back(linear_op("shared_down", shared_down, {}, rows));
  m.shared_up = shared_up.trained();
  m.shared_down = shared_down.trained();
}

namespace {

// Rows to the experts and back, in pieces. Counts of them are told first; the weights of choices go
// with the rows, their gradients come back with the rows' gradients.
void exchange_wire(std::vector<OpCost>& ops, const ModelSpec& model, const WorkShape& shape,
                   const MixtureDims& m) {
  using enum ActionKind;
  if (!m.moves()) return;
  const ExpertLoad load = expert_load(model, shape);
  const std::int64_t row = model.hidden * size_of(shape.dtype), weight = size_of(wide(shape.dtype));
  const std::int64_t counts =
      (m.exchange - 1) * m.held * static_cast<std::int64_t>(sizeof(std::int64_t));
  const std::int64_t pieces = std::min<std::int64_t>(shape.ep_chunks, m.held);
  const auto book = [&](const char* op, ActionKind pass, std::int64_t calls, std::int64_t bytes) {
    op_named(ops, op).wire.push_back(
        {pass, CollectiveKind::kAllToAll, Axis::kEp, calls, Bytes{bytes}});
  };
  for (const ActionKind pass : {kForward, kBackwardInput}) {
    if (pass == kBackwardInput && shape.recompute != Recompute::kFull) continue;
    book("up", pass, 2 + pieces, counts + load.sent_away() * (row + weight));
  }
  book("down", kForward, pieces, load.from_away() * row);
  book("down", kBackwardInput, pieces, load.sent_away() * row);
  book("up", kBackwardInput, 1 + pieces, load.from_away() * (row + weight));
}

}  // namespace

// All experts together read the rows once and leave one sum; the choices' weights have a gradient
// of their own to be summed.
void mixture_wire(std::vector<OpCost>& ops, const ModelSpec& model, const WorkShape& shape,
                  const BlockDims& dims) {
  using enum ActionKind;
  const MixtureDims& m = *dims.mixture;
  const bool shared = m.shared > 0, here = !m.moves();
  exchange_wire(ops, model, shape, m);
  OpCost &up = op_named(ops, "up"), &down = op_named(ops, "down");
  const ResidualWire wire(shape, model.hidden);
  for (const ActionKind pass : {kForward, kBackwardInput}) {
    if (pass == kBackwardInput && shape.recompute != Recompute::kFull) continue;
    wire.to_whole(up, pass);
  }
  wire.to_rows(down, kForward);
  wire.to_whole(down, kBackwardInput);
  wire.sum_whole(op_named(ops, "router"), kBackwardInput, m.top_k, {size_of(wide(shape.dtype))});
  wire.to_rows(up, kBackwardInput);
  if (!gathers_again(shape)) return;
  if (m.router || (here && m.up) || (shared && m.shared_up)) wire.to_whole(up, kBackwardWeight);
  if (shape.fused_backward) return;
  if ((here && m.down) || (shared && m.shared_down)) wire.to_whole(down, kBackwardWeight);
}

}  // namespace quatrain
