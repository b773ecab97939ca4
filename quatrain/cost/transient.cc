// SPDX-License-Identifier: Apache-2.0
// Scratch by tensor, for a block with rows N = batch x seq (letters as in stash_table.cc). All are
// taken to live at once and to be wide, which they are not: hence a bound.
//   x, y, h, dy, dh and a norm's output or its gradient     6 N D
//   q|k|v and its gradient                                  2 N (H + 2 K) d
//   attention's output and its gradient, its row sums       2 N H d + N H
//   pre-activation or its gradient, activation, its gradient    N (U + 2 F)
//   norm gains' gradients by sequence                       4 B D
//   tokens, labels, positions as operations take them       8 N int64
// Widened, the largest product adds operands and result: N in + in out + N out.
#include <algorithm>

#include "quatrain/cost/walk.h"

namespace quatrain {

namespace {

// Elements of the largest product's operands and result.
std::int64_t largest_product(const ModelSpec& model, const WorkShape& shape, std::int64_t qkv,
                             std::int64_t up) {
  const std::int64_t n = shape.batch * shape.seq;
  const auto product = [](std::int64_t rows, std::int64_t in, std::int64_t out) {
    return rows * in + in * out + rows * out;
  };
  return std::max({product(n, model.hidden, qkv), product(n, model.hidden, up),
                   product(n, model.ffn, model.hidden),
                   product(n, model.heads * model.head_dim, model.hidden),
                   product(std::min(n, shape.head_chunk_tokens), model.hidden, model.vocab)});
}

}  // namespace

Bytes transient_bound(const ModelSpec& model, const WorkShape& shape, bool widened) {
  const std::int64_t n = shape.batch * shape.seq;
  const std::int64_t heads = model.heads * model.head_dim;
  const std::int64_t qkv = (model.heads + 2 * model.kv_heads) * model.head_dim;
  const std::int64_t up = model.mlp == MlpKind::kSwiGlu ? 2 * model.ffn : model.ffn;
  const std::int64_t elements = 6 * n * model.hidden + 2 * n * qkv + n * (2 * heads + model.heads) +
                                n * (up + 2 * model.ffn) + 4 * shape.batch * model.hidden;
  const std::int64_t product = widened ? largest_product(model, shape, qkv, up) : 0;
  const std::int64_t ids = 8 * n * static_cast<std::int64_t>(sizeof(std::int64_t));
  return {(elements + product) * size_of(wide(shape.dtype)) + ids};
}

}  // namespace quatrain
