// SPDX-License-Identifier: Apache-2.0
// ModelSpec to config.json: the v4 form of the rotary keys, which transformers v4 and v5 both read.
#include <algorithm>
#include <array>

#include "quatrain/spec/model_io.h"
#include "quatrain/spec/model_keys.h"

namespace quatrain {
namespace {

using Json = nlohmann::json;

const char* architecture(Family family) {
  switch (family) {
    case Family::kGpt2:
      return "GPT2LMHeadModel";
    case Family::kLlama:
      return "LlamaForCausalLM";
    case Family::kQwen2:
      return "Qwen2ForCausalLM";
    case Family::kQwen3:
      return "Qwen3ForCausalLM";
    case Family::kMixtral:
      return "MixtralForCausalLM";
    case Family::kQwen3Moe:
      return "Qwen3MoeForCausalLM";
    case Family::kDeepseekV3:
      return "DeepseekV3ForCausalLM";
  }
  return "";
}

void common_keys(const ModelSpec& spec, Json& keys) {
  keys["architectures"] = {architecture(spec.family)};
  keys["model_type"] = std::string(name(spec.family));
  keys["vocab_size"] = spec.vocab;
  keys["tie_word_embeddings"] = spec.tied;
  keys["initializer_range"] = spec.init_std;
  keys["resid_pdrop"] = spec.residual_dropout;
  keys["embd_pdrop"] = spec.embedding_dropout;
  if (spec.init_scale_by_depth != (spec.family == Family::kGpt2)) {
    keys["init_scale_by_depth"] = spec.init_scale_by_depth;
  }
  if (spec.bos_id) keys["bos_token_id"] = *spec.bos_id;
  if (spec.eos_ids.size() == 1) {
    keys["eos_token_id"] = spec.eos_ids[0];
  } else if (!spec.eos_ids.empty()) {
    keys["eos_token_id"] = spec.eos_ids;
  }
}

void gpt2_keys(const ModelSpec& spec, Json& keys) {
  keys["n_embd"] = spec.hidden;
  keys["n_layer"] = spec.layers;
  keys["n_head"] = spec.heads;
  keys["n_inner"] = spec.ffn;
  keys["n_positions"] = spec.max_positions;
  keys["layer_norm_epsilon"] = spec.norm_eps;
  keys["activation_function"] = spec.gelu_tanh ? "gelu_new" : "gelu";
  keys["attn_pdrop"] = spec.attention_dropout;
}

void window_keys(const ModelSpec& spec, Json& keys) {
  if (spec.family == Family::kMixtral) {
    if (spec.window > 0) keys["sliding_window"] = spec.window;
    return;
  }
  keys["use_sliding_window"] = spec.window > 0;
  if (spec.window == 0) return;
  keys["sliding_window"] = spec.window;
  if (spec.family == Family::kQwen3Moe) return;
  Json types = Json::array();
  for (std::int64_t i = 0; i < spec.layers; ++i) {
    types.push_back(spec.layer_window(i) > 0 ? "sliding_attention" : "full_attention");
  }
  keys["layer_types"] = types;
}

void llama_keys(const ModelSpec& spec, Json& keys) {
  keys["hidden_size"] = spec.hidden;
  keys["num_hidden_layers"] = spec.layers;
  keys["num_attention_heads"] = spec.heads;
  keys["num_key_value_heads"] = spec.kv_heads;
  keys["intermediate_size"] = spec.ffn;
  keys["max_position_embeddings"] = spec.max_positions;
  keys["rms_norm_eps"] = spec.norm_eps;
  keys["hidden_act"] = "silu";
  keys["attention_dropout"] = spec.attention_dropout;
  rope_to_keys(spec, keys);
  if (!spec.latent) keys["head_dim"] = spec.head_dim;
  if (spec.family == Family::kLlama) keys["mlp_bias"] = spec.mlp_bias;
  if (spec.family != Family::kQwen2 && spec.family != Family::kMixtral) {
    keys["attention_bias"] = spec.out_bias;
  }
  if (spec.family != Family::kLlama && spec.family != Family::kDeepseekV3) window_keys(spec, keys);
}

void expert_keys(const ModelSpec& spec, const Experts& experts, Json& keys) {
  keys["num_experts_per_tok"] = experts.top_k;
  if (spec.family == Family::kMixtral) {
    keys["num_local_experts"] = experts.num_experts;
    keys["router_aux_loss_coef"] = experts.aux_loss_coef;
    return;
  }
  keys["moe_intermediate_size"] = experts.ffn;
  keys["norm_topk_prob"] = experts.normalise_top_k;
  if (spec.family == Family::kQwen3Moe) {
    keys["num_experts"] = experts.num_experts;
    keys["decoder_sparse_step"] = experts.sparse_step;
    keys["mlp_only_layers"] = experts.dense_layers;
    keys["router_aux_loss_coef"] = experts.aux_loss_coef;
    return;
  }
  keys["n_routed_experts"] = experts.num_experts;
  keys["n_shared_experts"] = experts.num_shared;
  keys["first_k_dense_replace"] = experts.first_dense;
  keys["n_group"] = experts.num_groups;
  keys["topk_group"] = experts.top_k_groups;
  keys["routed_scaling_factor"] = experts.routed_scaling;
  keys["scoring_func"] = "sigmoid";
  keys["topk_method"] = "noaux_tc";
}

// Keys that are ours to write, or that an import makes untrue.
bool is_carried(std::string_view key) {
  constexpr std::array<std::string_view, 5> kLeft{"dtype", "torch_dtype", "quantization_config",
                                                  "num_nextn_predict_layers", "num_mtp_layers"};
  return find_model_key(key) == nullptr &&
         std::find(kLeft.begin(), kLeft.end(), key) == kLeft.end();
}

}  // namespace

std::string to_hub_json(const ModelSpec& spec, std::string_view source) {
  Json keys = Json::parse(to_hub_json(spec));
  const Json others = Json::parse(source, nullptr, false);
  if (!others.is_object()) return keys.dump(2);
  for (const auto& [key, value] : others.items()) {
    if (is_carried(key)) keys.emplace(key, value);  // not in the place of one of ours
  }
  return keys.dump(2);
}

std::string to_hub_json(const ModelSpec& spec) {
  Json keys = Json::object();
  common_keys(spec, keys);
  if (spec.family == Family::kGpt2) {
    gpt2_keys(spec, keys);
  } else {
    llama_keys(spec, keys);
  }
  if (spec.experts) expert_keys(spec, *spec.experts, keys);
  if (spec.latent) {
    const LatentAttention& latent = *spec.latent;
    keys["q_lora_rank"] = latent.q_lora_rank > 0 ? Json(latent.q_lora_rank) : Json();
    keys["kv_lora_rank"] = latent.kv_lora_rank;
    keys["qk_nope_head_dim"] = latent.qk_nope_head_dim;
    keys["qk_rope_head_dim"] = latent.qk_rope_head_dim;
    keys["v_head_dim"] = latent.v_head_dim;
  }
  return keys.dump(2);
}

}  // namespace quatrain
