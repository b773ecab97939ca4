// SPDX-License-Identifier: Apache-2.0
// Rules that a ModelSpec must satisfy by itself. Places are named by the canonical config key.
#include <fmt/core.h>

#include "quatrain/base/text.h"
#include "quatrain/spec/model_io.h"

namespace quatrain {
namespace {

class ModelChecker {
 public:
  explicit ModelChecker(const ModelSpec& spec) : spec_(spec) {}

  Problems run() {
    sizes();
    if (!problems_.empty()) return std::move(problems_);  // ratios of bad sizes say nothing
    heads();
    ranges();
    if (spec_.position == PositionKind::kRope) rope();
    windows();
    if (spec_.experts) experts(*spec_.experts);
    return std::move(problems_);
  }

 private:
  void add(const char* key, std::string what, std::string hint = "") {
    problems_.push_back({fmt::format("model.{}", key), std::move(what), std::move(hint)});
  }
  void at_least(const char* key, std::int64_t value, std::int64_t least) {
    if (value < least) {
      add(key, fmt::format("{} = {} is too small", key, value), fmt::format("at least {}", least));
    }
  }
  void fraction(const char* key, double value) {
    if (!(value >= 0.0 && value < 1.0)) {
      add(key, fmt::format("{} = {} is out of range", key, value), "0 <= dropout < 1");
    }
  }

  void sizes() {
    at_least("vocab_size", spec_.vocab, 1);
    at_least("hidden_size", spec_.hidden, 1);
    at_least("num_hidden_layers", spec_.layers, 1);
    at_least("num_attention_heads", spec_.heads, 1);
    at_least("num_key_value_heads", spec_.kv_heads, 1);
    at_least("intermediate_size", spec_.ffn, 1);
    at_least("max_position_embeddings", spec_.max_positions, 1);
    if (spec_.hidden >= spec_.heads) at_least("head_dim", spec_.head_dim, 1);
    if (!spec_.latent) return;
    at_least("q_lora_rank", spec_.latent->q_lora_rank, 0);
    at_least("kv_lora_rank", spec_.latent->kv_lora_rank, 1);
    at_least("qk_nope_head_dim", spec_.latent->qk_nope_head_dim, 1);
    at_least("qk_rope_head_dim", spec_.latent->qk_rope_head_dim, 1);
    at_least("v_head_dim", spec_.latent->v_head_dim, 1);
  }

  void heads() {
    if (spec_.heads % spec_.kv_heads != 0) {
      add("num_key_value_heads",
          fmt::format("{} query heads are not a multiple of {} key and value heads", spec_.heads,
                      spec_.kv_heads),
          "num_key_value_heads that fit: " + join(divisors(spec_.heads), " "));
    }
    if (spec_.latent && spec_.kv_heads != spec_.heads) {
      add("num_key_value_heads",
          fmt::format("latent attention has as many key heads as query heads, {}", spec_.heads));
    }
    const bool derived = spec_.head_dim == spec_.hidden / spec_.heads;
    if (!spec_.latent && derived && spec_.hidden % spec_.heads != 0) {
      add("num_attention_heads",
          fmt::format("{} heads do not divide hidden_size = {}", spec_.heads, spec_.hidden),
          "heads that fit: " + join(divisors(spec_.hidden), " "));
    }
  }

  void ranges() {
    fraction("attention_dropout", spec_.attention_dropout);
    fraction("resid_pdrop", spec_.residual_dropout);
    fraction("embd_pdrop", spec_.embedding_dropout);
    if (!(spec_.norm_eps > 0.0 && spec_.norm_eps < 1.0)) {
      add("rms_norm_eps", fmt::format("norm epsilon = {} is out of range", spec_.norm_eps),
          "0 < epsilon < 1, often 1e-6 or 1e-5");
    }
    if (!(spec_.init_std >= 0.0 && spec_.init_std < 1e3)) {
      add("initializer_range",
          fmt::format("initializer_range = {} is out of range", spec_.init_std), "often 0.02");
    }
    token("bos_token_id", spec_.bos_id.value_or(0));
    for (std::int64_t id : spec_.eos_ids) token("eos_token_id", id);
  }
  void token(const char* key, std::int64_t id) {
    if (id >= 0 && id < spec_.vocab) return;
    add(key, fmt::format("{} = {} is not a token of a vocabulary of {}", key, id, spec_.vocab),
        fmt::format("0 to {}", spec_.vocab - 1));
  }

  void rope() {
    const Rope& rope = spec_.rope;
    const std::int64_t rotated = spec_.latent ? spec_.latent->qk_rope_head_dim : spec_.head_dim;
    if (rotated % 2 != 0) {
      add(spec_.latent ? "qk_rope_head_dim" : "head_dim",
          fmt::format("head_dim = {} is odd; rotary positions turn pairs", rotated),
          fmt::format("{} or {}", rotated - 1, rotated + 1));
    }
    if (!(rope.theta > 0.0 && rope.theta < 1e300)) {
      add("rope_theta", fmt::format("rope_theta = {} is out of range", rope.theta), "often 10000");
    }
    if (rope.scaling == RopeScaling::kNone) return;
    if (!(rope.factor >= 1.0 && rope.factor < 1e9)) {
      add("rope_scaling", fmt::format("factor = {} is out of range", rope.factor), "at least 1");
    }
    if (rope.scaling == RopeScaling::kLinear) return;
    if (rope.original_max_positions < 1) {
      add("rope_scaling",
          fmt::format("original_max_position_embeddings = {} is too small",
                      rope.original_max_positions),
          "at least 1");
    }
    if (rope.scaling == RopeScaling::kLlama3 &&
        !(rope.low_freq_factor > 0.0 && rope.low_freq_factor < rope.high_freq_factor)) {
      add("rope_scaling", fmt::format("low_freq_factor = {} is not between 0 and "
                                      "high_freq_factor = {}",
                                      rope.low_freq_factor, rope.high_freq_factor));
    }
  }

  void windows() {
    if (spec_.window < 0) {
      add("sliding_window", fmt::format("sliding_window = {} is negative", spec_.window),
          "leave it out for none");
    }
    const auto listed = static_cast<std::int64_t>(spec_.window_layers.size());
    if (listed != 0 && listed != spec_.layers) {
      add("layer_types", fmt::format("{} layer types for {} layers", listed, spec_.layers),
          "give one a layer, or leave layer_types out");
    }
  }

  void experts(const Experts& experts) {
    at_least("num_experts", experts.num_experts, 1);
    at_least("moe_intermediate_size", experts.ffn, 1);
    at_least("n_shared_experts", experts.num_shared, 0);
    at_least("first_k_dense_replace", experts.first_dense, 0);
    at_least("decoder_sparse_step", experts.sparse_step, 1);
    if (experts.top_k < 1 || experts.top_k > experts.num_experts) {
      add("num_experts_per_tok",
          fmt::format("num_experts_per_tok = {} of {} experts", experts.top_k, experts.num_experts),
          fmt::format("1 to {}", experts.num_experts));
    }
    if (experts.num_groups < 1 || experts.num_experts % experts.num_groups != 0) {
      add("n_group",
          fmt::format("n_group = {} does not divide {} experts", experts.num_groups,
                      experts.num_experts),
          "groups that fit: " + join(divisors(experts.num_experts), " "));
    } else if (experts.top_k_groups < 1 || experts.top_k_groups > experts.num_groups) {
      add("topk_group",
          fmt::format("topk_group = {} of {} groups", experts.top_k_groups, experts.num_groups),
          fmt::format("1 to {}", experts.num_groups));
    }
    for (std::int64_t layer : experts.dense_layers) {
      if (layer >= 0 && layer < spec_.layers) continue;
      add("mlp_only_layers", fmt::format("layer {} does not exist", layer),
          fmt::format("0 to {}", spec_.layers - 1));
    }
  }

  const ModelSpec& spec_;
  Problems problems_;
};

}  // namespace

Problems check(const ModelSpec& spec) { return ModelChecker(spec).run(); }

}  // namespace quatrain
