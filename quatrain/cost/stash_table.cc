// SPDX-License-Identifier: Apache-2.0
// The rows of a pre-norm block:
//   n1 = norm1(x); q|k|v = n1 Wqkv + b [q, k norm]; rope; a = attention; h = x + drop(a Wo + b);
//   n2 = norm2(h); pre = n2 Wup + b; act = gelu(pre) or silu(gate) up; y = h + drop(act Wdown + b)
// Letters: N rows, R own rows of the residual stream, D hidden, H heads, K kv heads, d head dim,
// F ffn, B sequences, T positions. x, h, y and the norms are R D; between, products read N D.
#include "quatrain/cost/stash_table.h"

#include <array>
#include <utility>

#include "quatrain/cost/stash_rows.h"

namespace quatrain {

void StashRows::keep(std::string_view op, std::string_view what, std::int64_t elements,
                     StashLife life, StashWidth width) {
  if (keeps_.recompute == Recompute::kFull) {
    if (life == StashLife::kInput) return;
    life = StashLife::kLate;
  }
  rows_.push_back({op, what, elements, width, life});
}

void StashRows::norm_output(std::string_view op, std::string_view what, const BlockDims& dims) {
  const bool again = keeps_.recompute == Recompute::kSelective;
  const std::int64_t kept = keeps_.gather_again ? dims.own_rows : dims.batch * dims.seq;
  keep(op, what, kept * dims.hidden, again ? StashLife::kLate : StashLife::kWeight);
}

void StashRows::output_gradient(std::string_view op, std::string_view what, const BlockDims& dims) {
  const bool whole = !keeps_.gather_again || keeps_.fused_backward;
  const std::int64_t kept = whole ? dims.batch * dims.seq : dims.own_rows;
  keep(op, what, kept * dims.hidden, StashLife::kLate);
}

namespace {

struct NormNames {
  std::string_view op, x, mean, rstd, dgain, dbias;
};

void norm_rows(StashRows& rows, const NormNames& names, const BlockDims& dims,
               const BlockKeeps& keeps, bool gain, bool bias) {
  const std::int64_t own = dims.own_rows;
  rows.keep(names.op, names.x, own * dims.hidden, StashLife::kInput);
  if (!keeps.statistics) return;
  rows.keep(names.op, names.rstd, own, StashLife::kInput, StashWidth::kWide);
  if (dims.centred_norm) {
    rows.keep(names.op, names.mean, own, StashLife::kInput, StashWidth::kWide);
  }
  const std::int64_t sums = dims.gain_sums * dims.hidden;
  if (gain) rows.keep(names.op, names.dgain, sums, StashLife::kLate, StashWidth::kWide);
  if (bias) rows.keep(names.op, names.dbias, sums, StashLife::kLate, StashWidth::kWide);
}

// A norm over each head; its gains' gradients are summed by sequence.
void head_norm_rows(StashRows& rows, const BlockDims& dims, std::int64_t heads, bool trained,
                    const std::array<std::string_view, 3>& names) {
  const std::int64_t n = dims.batch * dims.seq;
  rows.keep_if(!dims.exchanges(), "attention", names[0], n * heads * dims.head_dim,
               StashLife::kInput);
  rows.keep("attention", names[1], n * heads, StashLife::kInput, StashWidth::kWide);
  if (trained) {
    rows.keep("attention", names[2], dims.batch * dims.head_dim, StashLife::kLate,
              StashWidth::kWide);
  }
}

void score_rows(StashRows& rows, const BlockDims& dims, const BlockKeeps& keeps) {
  const std::int64_t scores = dims.batch * dims.heads * dims.seq * dims.seq;
  rows.keep("attention", "attn.softmax", scores, StashLife::kInput);
  rows.keep("attention", "attn.dropped_softmax", scores, StashLife::kInput);
  if (keeps.masks) {
    rows.keep("attention", "attn.softmax_mask", scores, StashLife::kInput, StashWidth::kByte);
  }
}

void attention_rows(StashRows& rows, const BlockDims& dims, const BlockKeeps& keeps) {
  const BlockTraining& train = dims.train;
  const std::int64_t n = dims.batch * dims.seq;
  const std::int64_t qkv = n * (dims.heads + 2 * dims.kv_heads) * dims.head_dim;
  if (train.qkv) rows.norm_output("qkv", "norm1.y", dims);
  rows.keep_if(!dims.exchanges() || dims.qk_norm, "attention", "attn.qkv", qkv, StashLife::kInput);
  const std::int64_t here = dims.batch * dims.place_tokens * dims.heads_here(dims.heads);
  if (dims.exchanges()) {
    const std::int64_t kv = dims.batch * dims.place_tokens * dims.heads_here(dims.kv_heads);
    rows.keep("attention", "attn.heads", (here + 2 * kv) * dims.head_dim, StashLife::kInput);
    rows.keep("attention", "attn.heads_out", here * dims.head_dim, StashLife::kInput);
  }
  if (dims.qk_norm) {
    head_norm_rows(rows, dims, dims.heads, train.q_norm, {"attn.q", "attn.q_rstd", "attn.dq_gain"});
    head_norm_rows(rows, dims, dims.kv_heads, train.k_norm,
                   {"attn.k", "attn.k_rstd", "attn.dk_gain"});
  }
  rows.keep_if(!dims.exchanges() || train.out, "attention", "attn.out",
               n * dims.heads * dims.head_dim, train.out ? StashLife::kWeight : StashLife::kInput);
  if (keeps.statistics) {
    const std::int64_t queries = dims.exchanges() ? here : n * dims.heads;
    rows.keep("attention", "attn.lse", queries, StashLife::kInput, StashWidth::kWide);
  }
  if (keeps.scores) score_rows(rows, dims, keeps);
  if (train.qkv || train.qkv_bias) rows.keep("qkv", "attn.dqkv", qkv, StashLife::kLate);
  if (train.out || train.out_bias) rows.output_gradient("out", "attn.dy", dims);
  if (keeps.masks) {
    rows.keep("out", "attn.mask", dims.own_rows * dims.hidden, StashLife::kInput,
              StashWidth::kByte);
  }
}

void mlp_rows(StashRows& rows, const BlockDims& dims, const BlockKeeps& keeps) {
  const BlockTraining& train = dims.train;
  const std::int64_t n = dims.batch * dims.seq;
  if (train.up) rows.norm_output("up", "norm2.y", dims);
  rows.keep("up", "mlp.pre", n * dims.up_width, StashLife::kInput);
  if (train.up || train.up_bias) {
    rows.keep("up", "mlp.dpre", n * dims.up_width, StashLife::kLate);
  }
  if (train.down) {
    rows.keep("down", "mlp.act", n * dims.ffn,
              keeps.activation ? StashLife::kWeight : StashLife::kLate);
  }
  if (train.down || train.down_bias) rows.output_gradient("down", "mlp.dy", dims);
  if (keeps.masks) {
    rows.keep("down", "mlp.mask", dims.own_rows * dims.hidden, StashLife::kInput,
              StashWidth::kByte);
  }
}

}  // namespace

std::vector<StashRow> block_stash(const BlockDims& dims, const BlockKeeps& keeps) {
  StashRows rows(keeps);
  norm_rows(rows, {"norm1", "norm1.x", "norm1.mean", "norm1.rstd", "norm1.dgain", "norm1.dbias"},
            dims, keeps, dims.train.norm1, dims.train.norm1_bias);
  if (dims.latent) {
    latent_attention_rows(rows, dims);
  } else {
    attention_rows(rows, dims, keeps);
  }
  norm_rows(rows, {"norm2", "norm2.x", "norm2.mean", "norm2.rstd", "norm2.dgain", "norm2.dbias"},
            dims, keeps, dims.train.norm2, dims.train.norm2_bias);
  if (dims.mixture) {
    mixture_rows(rows, dims);
  } else {
    mlp_rows(rows, dims, keeps);
  }
  std::vector<StashRow> table = std::move(rows).take();
  if (keeps.recompute == Recompute::kFull) {
    table.push_back(
        {"norm1", "block.x", dims.own_rows * dims.hidden, StashWidth::kCompute, StashLife::kInput});
  }
  return table;
}

}  // namespace quatrain
