// SPDX-License-Identifier: Apache-2.0
// Rows of latent attention:
//   c = x Wqa, q = norm(c) Wq; [l | s] = x Wkva, k|v = norm(l) Wkvb; a = attention(q, [k, rope(s)])
// and of a mixture: logits = x Wr; of each row's k experts pre = x Wup, act = silu(gate) up w;
// y = sum of act Wdown, and of the shared expert.
// Letters beyond stash_table.cc's: Q and P the ranks of queries and of keys with values, n, r, v a
// head's dims without positions, with, of values; X rows of this rank's experts, E experts, F an
// expert's width, S the shared one's. Rows that come from other ranks are kept, and their weights.
#include "quatrain/cost/stash_rows.h"

namespace quatrain {
namespace {

using enum StashLife;

}  // namespace

void latent_attention_rows(StashRows& rows, const BlockDims& dims) {
  const LatentDims& l = *dims.latent;
  const bool compressed = l.q_rank > 0;
  const std::int64_t n = dims.batch * dims.seq, own = dims.own_rows;
  const std::int64_t gathered = rows.keeps().gather_again ? own : n;
  const std::int64_t query = n * dims.heads * (l.nope + l.rope);
  const std::int64_t kv = n * dims.heads * (l.nope + l.value);
  const std::int64_t latent = l.kv_rank + l.rope;
  if (compressed) {
    const bool again = rows.keeps().recompute == Recompute::kSelective;
    rows.keep_if(l.q_a || l.kv_a, "kv_a", "norm1.y", own * dims.hidden, again ? kLate : kWeight);
  } else if (l.q || l.kv_a) {
    rows.norm_output("kv_a", "norm1.y", dims);
  }
  if (compressed) {
    rows.keep("q_a", "attn.q_a", own * l.q_rank, kInput);
    rows.keep("q_a", "attn.q_a_rstd", own, kInput, StashWidth::kWide);
    rows.keep_if(l.q, "q", "attn.q_a_y", gathered * l.q_rank, kWeight);
    rows.keep_if(l.q_norm, "q_a", "attn.dq_gain", dims.gain_sums * l.q_rank, kLate,
                 StashWidth::kWide);
    rows.keep_if(l.q_a, "q_a", "attn.dq_a", own * l.q_rank, kLate);
  }
  rows.keep("kv_a", "attn.kv_a", own * latent, kInput);
  rows.keep("kv_a", "attn.kv_a_rstd", own, kInput, StashWidth::kWide);
  rows.keep_if(l.kv_b, "kv_b", "attn.latent", gathered * latent, kWeight);
  if (dims.exchanges()) {
    const std::int64_t here = dims.batch * dims.place_tokens * dims.heads_here(dims.heads);
    rows.keep("attention", "attn.heads", here * (2 * (l.nope + l.rope) + l.value), kInput);
    rows.keep("attention", "attn.heads_out", here * l.value, kInput);
    rows.keep_if(dims.train.out, "attention", "attn.out", n * dims.heads * l.value, kWeight);
    rows.keep("attention", "attn.lse", here, kInput, StashWidth::kWide);
  } else {
    rows.keep("attention", "attn.q", query, kInput);
    rows.keep("attention", "attn.kv", kv, kInput);
    rows.keep("attention", "attn.rotated", n * l.rope, kInput);
    rows.keep("attention", "attn.out", n * dims.heads * l.value, dims.train.out ? kWeight : kInput);
    rows.keep("attention", "attn.lse", n * dims.heads, kInput, StashWidth::kWide);
  }
  rows.keep_if(l.q, "q", "attn.dq", query, kLate);
  rows.keep_if(l.kv_b, "kv_b", "attn.dkv", kv, kLate);
  rows.keep_if(l.kv_a, "kv_a", "attn.dkv_a", own * latent, kLate);
  rows.keep_if(l.kv_norm, "kv_a", "attn.dkv_gain", dims.gain_sums * l.kv_rank, kLate,
               StashWidth::kWide);
  if (dims.train.out || dims.train.out_bias) rows.output_gradient("out", "attn.dy", dims);
}

void mixture_rows(StashRows& rows, const BlockDims& dims) {
  const MixtureDims& m = *dims.mixture;
  const std::int64_t n = dims.batch * dims.seq;
  const bool shared = m.shared > 0, here = !m.moves();
  const bool reads_x = here && m.up, reads_dy = here && m.down;
  if (m.router || reads_x || (shared && m.shared_up)) rows.norm_output("up", "norm2.y", dims);
  rows.keep("router", "moe.logits", n * m.experts, kInput, StashWidth::kWide);
  rows.keep("router", "moe.experts", n * m.top_k, reads_x || reads_dy ? kWeight : kInput,
            StashWidth::kIndex);
  rows.keep_if(m.counts_sequences, "router", "moe.sequences", dims.batch * m.experts, kInput,
               StashWidth::kIndex);
  if (m.moves()) {
    rows.keep("up", "moe.counts", m.exchange * m.held, m.up || m.down ? kWeight : kInput,
              StashWidth::kIndex);
    rows.keep("up", "moe.weights", m.rows, kInput, StashWidth::kWide);
    rows.keep_if(m.up, "up", "moe.x_rows", m.rows * dims.hidden, kWeight);
    rows.keep_if(m.down, "down", "moe.dy_rows", m.rows * dims.hidden, kLate);
  }
  rows.keep("up", "moe.pre", m.rows * 2 * m.ffn, kInput);
  rows.keep_if(shared, "shared_up", "shared.pre", n * 2 * m.shared, kInput);
  rows.keep_if(m.router, "router", "moe.dlogits", n * m.experts, kLate, StashWidth::kWide);
  rows.keep_if(m.up, "up", "moe.dpre", m.rows * 2 * m.ffn, kLate);
  rows.keep_if(m.down, "down", "moe.act", m.rows * m.ffn, kLate);
  rows.keep_if(shared && m.shared_up, "shared_up", "shared.dpre", n * 2 * m.shared, kLate);
  rows.keep_if(shared && m.shared_down, "shared_down", "shared.act", n * m.shared, kLate);
  if (reads_dy || (shared && m.shared_down)) rows.output_gradient("down", "moe.dy", dims);
}

}  // namespace quatrain
