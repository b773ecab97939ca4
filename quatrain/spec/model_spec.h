// SPDX-License-Identifier: Apache-2.0
// What a model is, as plain data. The vocabulary of Hugging Face's config.json is the file format
// (catalogue, [model] section, imported folders); these are the fields we compute with.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quatrain {

enum class Dtype : std::uint8_t { kFloat32, kBFloat16, kFloat64 };

// Bytes of one element.
constexpr std::int64_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return 4;
    case Dtype::kBFloat16:
      return 2;
    case Dtype::kFloat64:
      return 8;
  }
  return 0;
}
// The dtype of sums, gradients and masters: float32 for bf16 and float32, float64 for float64.
constexpr Dtype wide(Dtype dtype) {
  return dtype == Dtype::kFloat64 ? Dtype::kFloat64 : Dtype::kFloat32;
}

std::string_view name(Dtype dtype);  // "float32", "bfloat16", "float64"
std::optional<Dtype> dtype_from_name(std::string_view text);

enum class Family : std::uint8_t {
  kGpt2,
  kLlama,
  kQwen2,
  kQwen3,
  kMixtral,
  kQwen3Moe,
  kDeepseekV3
};
std::string_view name(Family family);  // config.json's model_type: "gpt2", "llama", ...
std::optional<Family> family_from_name(std::string_view text);
std::vector<std::string> family_names();
enum class NormKind : std::uint8_t { kLayerNorm, kRmsNorm };
enum class MlpKind : std::uint8_t { kGelu, kSwiGlu };
enum class PositionKind : std::uint8_t { kLearned, kRope };

// Rotary embedding (Su et al., arXiv:2104.09864), half-split form.
enum class RopeScaling : std::uint8_t { kNone, kLinear, kLlama3, kYarn };
struct Rope {
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;             // llama3
  double high_freq_factor = 4.0;            // llama3
  std::int64_t original_max_positions = 0;  // llama3, yarn
  double beta_fast = 32.0;                  // yarn
  double beta_slow = 1.0;                   // yarn
  std::optional<double> attention_factor;   // yarn: default 0.1 ln(factor) + 1
  double mscale = 0.0;                      // yarn (DeepSeek): 0 = not given
  double mscale_all_dim = 0.0;
  friend bool operator==(const Rope&, const Rope&) = default;
};

// Mixture of experts. Absent for dense models.
enum class RouterScore : std::uint8_t { kSoftmax, kSigmoid };
struct Experts {
  std::int64_t num_experts = 0;
  std::int64_t top_k = 0;
  std::int64_t ffn = 0;                      // width of one expert
  std::int64_t num_shared = 0;               // shared experts, each of width ffn
  std::int64_t first_dense = 0;              // first layers that are dense
  std::int64_t sparse_step = 1;              // layer i is sparse if (i + 1) % sparse_step == 0
  std::vector<std::int64_t> dense_layers{};  // mlp_only_layers
  RouterScore score = RouterScore::kSoftmax;
  bool normalise_top_k = true;
  double routed_scaling = 1.0;
  std::int64_t num_groups = 1;
  std::int64_t top_k_groups = 1;
  bool selection_bias = false;  // e_score_correction_bias
  double aux_loss_coef = 0.0;
  friend bool operator==(const Experts&, const Experts&) = default;
};

// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434).
struct LatentAttention {
  std::int64_t q_lora_rank = 0;  // 0: q is not compressed
  std::int64_t kv_lora_rank = 0;
  std::int64_t qk_nope_head_dim = 0;
  std::int64_t qk_rope_head_dim = 0;
  std::int64_t v_head_dim = 0;
  friend bool operator==(const LatentAttention&, const LatentAttention&) = default;
};

// Letters used in shapes: V vocab, D hidden, L layers, H heads, K kv_heads, d head_dim, F ffn.
struct ModelSpec {
  std::string name;  // catalogue entry or folder; for messages
  Family family = Family::kLlama;
  std::int64_t vocab = 0;
  std::int64_t hidden = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn = 0;
  std::int64_t max_positions = 0;
  NormKind norm = NormKind::kRmsNorm;
  double norm_eps = 1e-6;
  MlpKind mlp = MlpKind::kSwiGlu;
  bool gelu_tanh = true;  // kGelu: tanh approximation ("gelu_new") or erf
  PositionKind position = PositionKind::kRope;
  Rope rope;
  bool qkv_bias = false;
  bool out_bias = false;  // attention output projection
  bool mlp_bias = false;
  bool qk_norm = false;             // RMSNorm per head on q and k, before RoPE
  bool tied = false;                // the head is the token embedding
  std::int64_t window = 0;          // sliding window in tokens; 0 = none
  std::vector<bool> window_layers;  // per layer; empty = all layers (when window > 0)
  double embedding_dropout = 0.0;
  double attention_dropout = 0.0;  // refused in training when > 0 unless an attention kernel has it
  double residual_dropout = 0.0;
  double init_std = 0.02;
  bool init_scale_by_depth = false;  // output projections at init_std / sqrt(2 L) (GPT-2)
  std::optional<Experts> experts;
  std::optional<LatentAttention> latent;
  std::vector<std::int64_t> eos_ids;
  std::optional<std::int64_t> bos_id;

  bool layer_is_sparse(std::int64_t layer) const;       // has experts
  std::int64_t layer_window(std::int64_t layer) const;  // 0 = full causal attention
  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

}  // namespace quatrain
