// SPDX-License-Identifier: Apache-2.0
// The table of what one block keeps between its passes, tensor by tensor: read by walk() with what
// the runtime does, and by korthikanti_layer() with what the paper assumes.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "quatrain/cost/walk.h"
#include "quatrain/spec/plan.h"

namespace quatrain {

// Which gradients the weight half makes: rows that serve no trained parameter are not kept.
struct BlockTraining {
  bool norm1 = true, norm1_bias = false;
  bool qkv = true, qkv_bias = false, q_norm = true, k_norm = true, out = true, out_bias = false;
  bool norm2 = true, norm2_bias = false;
  bool up = true, up_bias = false, down = true, down_bias = false;
};

// Sizes of latent attention (nn/latent_attention.h) and what of it is trained.
struct LatentDims {
  std::int64_t q_rank = 0;  // 0: queries are not compressed
  std::int64_t kv_rank = 0, nope = 0, rope = 0, value = 0;
  bool q_a = true, q_norm = true, q = true, kv_a = true, kv_norm = true, kv_b = true;
};

// Sizes of a mixture of experts (nn/moe.h): k choices of each row, widths this rank's.
struct MixtureDims {
  std::int64_t experts = 0, top_k = 0, ffn = 0;
  std::int64_t rows = 0;      // that experts of this rank compute
  std::int64_t exchange = 1;  // ranks that rows are exchanged with
  std::int64_t held = 0;      // experts of this rank
  bool moves() const { return exchange > 1; }
  std::int64_t shared = 0;        // width of the shared expert
  bool counts_sequences = false;  // whose rows other ranks have
  bool router = true, up = true, down = true, shared_up = true, shared_down = true;
};

// N = batch x seq rows; all sizes are this rank's.
struct BlockDims {
  std::int64_t batch = 1;
  std::int64_t seq = 0;
  std::int64_t own_rows = 0;   // of the residual stream: N, or its share of them
  std::int64_t gain_sums = 0;  // rows of a norm's gains' gradients
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn = 0;
  std::int64_t up_width = 0;  // of the pre-activation: ffn, or 2 ffn with a gate
  bool centred_norm = false;  // LayerNorm: means and biases beside RMSNorm's statistics and gains
  bool qk_norm = false;
  // Where ranks exchange tokens for heads: how many do, and the tokens that they have together.
  int context_heads = 1;
  std::int64_t place_tokens = 0;
  bool exchanges() const { return context_heads > 1; }
  std::int64_t heads_here(std::int64_t of) const {
    return std::max<std::int64_t>(1, of / context_heads);
  }
  std::optional<LatentDims> latent;    // in place of q, k, v
  std::optional<MixtureDims> mixture;  // in place of up and down
  BlockTraining train;
};

// Who keeps what. The defaults are the runtime's.
struct BlockKeeps {
  Recompute recompute = Recompute::kNone;
  bool gather_again = false;   // own rows are kept of what products read, not all
  bool fused_backward = true;  // what the input half gathered is there in the weight half
  bool statistics = true;      // norms' mean and rstd, attention's log-sum-exp
  bool activation = false;     // kept by the forward; otherwise made again by the input half
  bool masks = false;          // of dropout, one byte each; otherwise drawn again
  bool scores = false;         // attention's softmax, and after dropout (and its mask, with masks)
};

enum class StashLife : std::uint8_t {
  kInput,   // from the forward to the input half
  kWeight,  // from the forward to the weight half
  kLate     // from the input half to the weight half
};
enum class StashWidth : std::uint8_t { kCompute, kWide, kByte, kIndex };  // kIndex: int64
struct StashRow {
  std::string_view op;
  std::string_view what;
  std::int64_t elements;
  StashWidth width;
  StashLife life;
};
std::vector<StashRow> block_stash(const BlockDims& dims, const BlockKeeps& keeps);

// Books each row, in bytes, with the operation of its name. Throws BugError when there is none.
void add_rows(std::vector<OpCost>& ops, std::span<const StashRow> rows, Dtype dtype);

}  // namespace quatrain
