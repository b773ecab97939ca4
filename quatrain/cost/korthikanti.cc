// SPDX-License-Identifier: Apache-2.0
// Activation memory as Korthikanti et al. count it (arXiv:2205.05198, section 4): our table of
// tensors under their assumptions.
#include "quatrain/base/check.h"
#include "quatrain/cost/stash_table.h"
#include "quatrain/cost/walk.h"

namespace quatrain {

std::vector<OpCost> korthikanti_layer(std::int64_t seq, std::int64_t batch, std::int64_t hidden,
                                      std::int64_t heads, const PaperAssumptions& assumptions) {
  const TensorSplit& split = assumptions.split;
  CHECK(hidden % heads == 0, "{} heads do not divide a width of {}", heads, hidden);
  CHECK(heads % split.degree == 0 && seq % split.degree == 0,
        "{} heads or {} positions on {} ranks", heads, seq, split.degree);
  BlockDims dims;
  dims.batch = batch;
  dims.seq = seq;
  dims.own_rows = batch * seq / (split.sequence_parallel ? split.degree : 1);
  dims.hidden = hidden;
  dims.heads = dims.kv_heads = heads / split.degree;
  dims.head_dim = hidden / heads;
  dims.ffn = dims.up_width = 4 * hidden / split.degree;
  dims.centred_norm = true;
  BlockKeeps keeps;
  keeps.statistics = false;
  keeps.activation = true;
  keeps.gather_again = split.sequence_parallel && assumptions.gather_again;
  keeps.masks = assumptions.masks_stored;
  keeps.scores = assumptions.scores_stored;
  std::vector<OpCost> ops;
  for (const char* name : {"norm1", "qkv", "attention", "out", "norm2", "up", "down"}) {
    ops.emplace_back().name = name;
  }
  add_rows(ops, block_stash(dims, keeps), Dtype::kBFloat16);
  return ops;
}

Bytes korthikanti_layer_bytes(std::int64_t seq, std::int64_t batch, std::int64_t hidden,
                              std::int64_t heads, const PaperAssumptions& assumptions) {
  return UnitCost{"layer", korthikanti_layer(seq, batch, hidden, heads, assumptions)}.stash();
}

}  // namespace quatrain
