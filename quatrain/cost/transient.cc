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
  return std::max({product(n, model.hidden, qkv), product(n, model.hidden, up),
                   product(n, own.ffn, model.hidden),
                   product(n, own.heads * model.head_dim, model.hidden),
                   product(std::min(n, shape.head_chunk_tokens), model.hidden, own.vocab)});
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
  const std::int64_t heads = own.heads * model.head_dim;
  const std::int64_t qkv = (own.heads + 2 * own.kv_heads) * model.head_dim;
  const std::int64_t up = model.mlp == MlpKind::kSwiGlu ? 2 * own.ffn : own.ffn;
  const std::int64_t elements = 6 * n * model.hidden + 2 * n * qkv + n * (2 * heads + own.heads) +
                                n * (up + 2 * own.ffn) + 4 * shape.batch * model.hidden +
                                in_flight(model, shape);
  const std::int64_t product = widened ? largest_product(model, shape, qkv, up) : 0;
  const std::int64_t ids = 8 * n * static_cast<std::int64_t>(sizeof(std::int64_t));
  return {(elements + product) * size_of(wide(shape.dtype)) + ids};
}

}  // namespace quatrain
