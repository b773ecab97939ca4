// SPDX-License-Identifier: Apache-2.0
// Scratch by tensor, for a block with rows N = batch x seq (letters as in stash_table.cc, those of
// heads, F and V this rank's share). All are taken to live at once and to be wide, which they are
// not: hence a bound.
//   x, y, h, dy, dh and a norm's output or its gradient     6 N D
//   q|k|v and its gradient                                  2 N (H + 2 K) d
//   attention's output and its gradient, its row sums       2 N H d + N H
//   pre-activation or its gradient, activation, its gradient    N (U + 2 F)
//   norm gains' gradients by sequence                       4 B D
//   tokens, labels, positions as operations take them       8 N int64
// On t ranks of tp, with P the rows of all pieces padded to the largest:
//   gathered rows and a sum in the making, each padded too   4 P D
//   three float64 a row of logits, own and gathered          6 (t + 1) C
// Latent attention, q = n + r, in place of q|k|v:
//   queries, keys and their gradients                        4 N H q
//   keys with values, their gradient; the output and its     2 N H (n + v) + 2 N H v + N H
//   latents, their norms and gradients                       4 N (P + r + Q)
// A mixture, M = N k choices and X rows of this rank's experts, in place of the feed-forward part:
//   gathered rows and what goes back to rows                 2 M D
//   rows that arrive, by rank and by expert, and results     4 X D, where rows move
//   rows that go to copies ranks, and rows in pieces         2 M D (copies - 1), 2 M D
//   pre-activations, activations and their gradients         4 X F + 3 N S
//   logits, scores, their gradients; choices and weights     6 N E + 8 M
// Widened, the largest product adds operands and result: N in + in out + N out.
#include <algorithm>

#include "quatrain/cost/local.h"
#include "quatrain/cost/walk.h"

namespace quatrain {

namespace {

// Elements of the largest product's operands and result.
std::int64_t largest_product(const ModelSpec& model, const WorkShape& shape, std::int64_t qkv,
                             std::int64_t up) {
  const std::int64_t n = shape.batch * shape.seq;
  const LocalSizes own = local_sizes(model, shape.split);
  const auto product = [](std::int64_t rows, std::int64_t in, std::int64_t out) {
    return rows * in + in * out + rows * out;
  };
  const std::int64_t expert = model.experts ? 2 * std::max(own.expert_ffn, own.shared_ffn) : 0;
  const std::int64_t rows = model.experts ? expert_load(model, shape).arrived() : 0;
  return std::max({product(rows, model.hidden, expert), product(n, model.hidden, qkv),
                   product(n, model.hidden, up), product(n, own.ffn, model.hidden),
                   product(n, own.heads * model.head_dim, model.hidden),
                   product(std::min(n, shape.head_chunk_tokens), model.hidden, own.vocab)});
}

// Elements of what lies between the projections of attention.
std::int64_t attention_elements(const ModelSpec& model, const WorkShape& shape) {
  const std::int64_t n = shape.batch * shape.seq;
  const LocalSizes own = local_sizes(model, shape.split);
  if (!model.latent) {
    const std::int64_t heads = own.heads * model.head_dim;
    const std::int64_t qkv = (own.heads + 2 * own.kv_heads) * model.head_dim;
    return 2 * n * qkv + n * (2 * heads + own.heads);
  }
  const LatentAttention& l = *model.latent;
  const std::int64_t heads = 4 * model.head_dim + 2 * (l.qk_nope_head_dim + 2 * l.v_head_dim) + 1;
  return n * own.heads * heads + 4 * n * (l.kv_lora_rank + l.qk_rope_head_dim + l.q_lora_rank);
}

// Of the feed-forward part, of the layers where it is largest.
std::int64_t feed_forward_elements(const ModelSpec& model, const WorkShape& shape) {
  const std::int64_t n = shape.batch * shape.seq;
  const LocalSizes own = local_sizes(model, shape.split);
  std::int64_t most = 0;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    if (!model.layer_is_sparse(layer)) {
      const std::int64_t up = model.mlp == MlpKind::kSwiGlu ? 2 * own.ffn : own.ffn;
      most = std::max(most, n * (up + 2 * own.ffn));
      continue;
    }
    const std::int64_t by_expert = n * model.experts->top_k;
    const std::int64_t arrived = expert_load(model, shape).arrived();
    const int ranks = shape.split.exchange_ranks(), copies = shape.split.expert_copies();
    const int again = 2 * (copies - 1) + (shape.ep_chunks > 1 ? 2 : 0);
    const std::int64_t moving = ranks > 1 ? 4 * arrived + again * by_expert : 0;
    most = std::max(most, (2 * by_expert + moving) * model.hidden + 4 * arrived * own.expert_ffn +
                              3 * n * own.shared_ffn + 6 * n * model.experts->num_experts +
                              8 * by_expert);
  }
  return most;
}

// Elements that come with cp: blocks of keys and values here, on their way and as gradients, parts
// of outputs, and sums, wide where operands may not be.
std::int64_t shared_sequences(const ModelSpec& model, const WorkShape& shape) {
  const ContextSplit& context = shape.context;
  if (context.degree == 1) return 0;
  std::int64_t tokens = 0;
  for (int place = 0; place < context.places(); ++place) {
    tokens = std::max(tokens, total(context.of_place(shape.whole_seq, place)));
  }
  const std::int64_t keys = context.gathers ? shape.whole_seq : tokens;
  const LocalSizes own = local_sizes(model, shape.split);
  const std::int64_t kv_heads = model.latent ? own.heads : own.kv_heads;
  const std::int64_t kv = std::max<std::int64_t>(1, kv_heads / context.heads);
  const std::int64_t heads = own.heads / context.heads;
  return 2 * shape.batch * model.head_dim * (8 * tokens * heads + 12 * keys * kv) +
         4 * shape.batch * shape.seq * model.head_dim * (own.heads + 2 * kv_heads);
}

// Elements that come with tp.
std::int64_t in_flight(const ModelSpec& model, const WorkShape& shape) {
  const std::int64_t ranks = shape.split.degree;
  if (ranks == 1) return 0;
  const std::int64_t n = shape.batch * shape.seq;
  const std::int64_t padded = ranks * piece(n, shape.split.degree, 0).size();
  return 4 * padded * model.hidden + 6 * (ranks + 1) * std::min(n, shape.head_chunk_tokens);
}

}  // namespace

Bytes transient_bound(const ModelSpec& model, const WorkShape& shape, bool widened) {
  const std::int64_t n = shape.batch * shape.seq;
  const LocalSizes own = local_sizes(model, shape.split);
  const std::int64_t qkv = (own.heads + 2 * own.kv_heads) * model.head_dim;
  const std::int64_t up = model.mlp == MlpKind::kSwiGlu ? 2 * own.ffn : own.ffn;
  const std::int64_t elements = 6 * n * model.hidden + attention_elements(model, shape) +
                                feed_forward_elements(model, shape) +
                                4 * shape.batch * model.hidden + in_flight(model, shape) +
                                shared_sequences(model, shape);
  const std::int64_t product = widened ? largest_product(model, shape, qkv, up) : 0;
  const std::int64_t ids = 8 * n * static_cast<std::int64_t>(sizeof(std::int64_t));
  return {(elements + product) * size_of(wide(shape.dtype)) + ids};
}

}  // namespace quatrain
