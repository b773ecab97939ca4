// SPDX-License-Identifier: Apache-2.0
// ModelSpec from the keys of a Hugging Face config.json (transformers v4 and v5). Defaults are
// those of the families' configuration classes, but dropout, which is 0 unless given.
#include "quatrain/spec/model_io.h"

#include <fmt/core.h>

#include <array>

#include "quatrain/base/text.h"
#include "quatrain/spec/model_keys.h"
#include "quatrain/spec/toml_document.h"

namespace quatrain {
namespace {

using Json = nlohmann::json;

// Typed look-ups in canonical keys; absent, null and wrongly typed values give the fallback.
class Reader {
 public:
  Reader(const Json& keys, const Locate& where, Problems& problems)
      : keys_(keys), where_(where), problems_(problems) {}

  bool has(const char* key) const {
    const auto found = keys_.find(key);
    const ModelKey* known = find_model_key(key);
    return found != keys_.end() && !found->is_null() && known && has_type(*found, known->type);
  }
  template <class T>
  T get(const char* key, T fallback) const {
    return has(key) ? keys_.at(key).get<T>() : fallback;
  }
  std::int64_t integer(const char* key, std::int64_t fallback) const { return get(key, fallback); }
  std::int64_t required(const char* key) {
    if (has(key)) return keys_.at(key).get<std::int64_t>();
    const auto found = keys_.find(key);
    if (found == keys_.end() || found->is_null()) {
      problem(key, fmt::format("{} is missing", key), "the model needs it");
    }
    return 0;
  }
  void problem(const std::string& key, std::string what, std::string hint = "") {
    problems_.push_back({where_(key), std::move(what), std::move(hint)});
  }
  const Json& keys() const { return keys_; }

 private:
  const Json& keys_;
  const Locate& where_;
  Problems& problems_;
};

// Whether the family is known.
bool read_family(Reader& in, ModelSpec& spec) {
  if (!in.has("model_type")) {
    in.problem("model_type", "model_type is missing",
               "give `name` (a catalogue entry), `hf` (a folder), or model_type and its keys; "
               "types: " +
                   join(family_names(), " "));
    return false;
  }
  const auto text = in.get<std::string>("model_type", "");
  if (const auto family = family_from_name(text)) {
    spec.family = *family;
    return true;
  }
  const auto near = nearest(text, family_names(), 1);
  in.problem("model_type", fmt::format("model_type \"{}\" is not supported", text),
             fmt::format("{}types: {}", near.empty() ? "" : "did you mean \"" + near[0] + "\"? ",
                         join(family_names(), " ")));
  return false;
}

std::int64_t default_positions(Family family) {
  switch (family) {
    case Family::kGpt2:
      return 1024;
    case Family::kLlama:
      return 2048;
    case Family::kQwen2:
    case Family::kQwen3:
    case Family::kQwen3Moe:
      return 32768;
    case Family::kMixtral:
      return 131072;
    case Family::kDeepseekV3:
      return 4096;
  }
  return 0;
}

void read_shape(Reader& in, ModelSpec& spec) {
  const bool gpt2 = spec.family == Family::kGpt2;
  spec.vocab = in.required("vocab_size");
  spec.hidden = in.required("hidden_size");
  spec.layers = in.required("num_hidden_layers");
  spec.heads = in.required("num_attention_heads");
  spec.kv_heads = gpt2 ? spec.heads : in.integer("num_key_value_heads", spec.heads);
  const std::int64_t even = spec.heads > 0 ? spec.hidden / spec.heads : 0;
  if (gpt2) {
    spec.head_dim = even;
  } else {
    spec.head_dim = in.integer("head_dim", spec.family == Family::kQwen3 ? 128 : even);
  }
  spec.ffn =
      gpt2 ? in.integer("intermediate_size", 4 * spec.hidden) : in.required("intermediate_size");
  spec.max_positions = in.integer("max_position_embeddings", default_positions(spec.family));
  spec.tied = in.get("tie_word_embeddings", gpt2);
  const bool wide_eps = gpt2 || spec.family == Family::kMixtral;
  spec.norm_eps = in.get("rms_norm_eps", wide_eps ? 1e-5 : 1e-6);
}

void read_biases(Reader& in, ModelSpec& spec) {
  const bool attention = in.get("attention_bias", false);
  switch (spec.family) {
    case Family::kGpt2:
      spec.qkv_bias = spec.out_bias = spec.mlp_bias = true;
      break;
    case Family::kLlama:
      spec.qkv_bias = spec.out_bias = attention;
      spec.mlp_bias = in.get("mlp_bias", false);
      break;
    case Family::kQwen2:
      spec.qkv_bias = true;
      break;
    case Family::kQwen3:
    case Family::kQwen3Moe:
      spec.qkv_bias = spec.out_bias = attention;
      break;
    case Family::kMixtral:
      break;
    case Family::kDeepseekV3:
      if (attention) {
        in.problem("attention_bias", "attention_bias = true is not supported for deepseek_v3",
                   "false is");
      }
      break;
  }
  spec.qk_norm = spec.family == Family::kQwen3 || spec.family == Family::kQwen3Moe;
}

void read_activation(Reader& in, ModelSpec& spec) {
  const bool gpt2 = spec.family == Family::kGpt2;
  spec.norm = gpt2 ? NormKind::kLayerNorm : NormKind::kRmsNorm;
  spec.mlp = gpt2 ? MlpKind::kGelu : MlpKind::kSwiGlu;
  spec.position = gpt2 ? PositionKind::kLearned : PositionKind::kRope;
  const auto act = in.get<std::string>("hidden_act", gpt2 ? "gelu_new" : "silu");
  spec.gelu_tanh = act != "gelu";
  const bool known = gpt2 ? act == "gelu_new" || act == "gelu_pytorch_tanh" || act == "gelu"
                          : act == "silu" || act == "swish";
  if (known) return;
  in.problem("hidden_act",
             fmt::format("activation \"{}\" is not supported for {}", act, name(spec.family)),
             gpt2 ? "gelu_new, gelu_pytorch_tanh and gelu are" : "silu is");
}

void read_window(Reader& in, ModelSpec& spec) {
  const bool mixtral = spec.family == Family::kMixtral;
  const bool qwen = spec.family == Family::kQwen2 || spec.family == Family::kQwen3 ||
                    spec.family == Family::kQwen3Moe;
  if (!mixtral && !(qwen && in.get("use_sliding_window", false))) return;
  spec.window = in.integer("sliding_window", mixtral ? 0 : 4096);
  if (mixtral || spec.family == Family::kQwen3Moe || spec.window <= 0) return;
  if (in.has("layer_types")) {
    for (const auto& type : in.get<std::vector<std::string>>("layer_types", {})) {
      if (type != "sliding_attention" && type != "full_attention") {
        in.problem("layer_types", fmt::format("layer type \"{}\" is not supported", type),
                   "full_attention and sliding_attention are");
      }
      spec.window_layers.push_back(type == "sliding_attention");
    }
  } else {
    const std::int64_t first = in.integer("max_window_layers", 28);
    for (std::int64_t i = 0; i < spec.layers; ++i) spec.window_layers.push_back(i >= first);
  }
  if (std::ssize(spec.window_layers) != spec.layers) return;  // check() says so
  bool all = true;
  bool any = false;
  for (bool windowed : spec.window_layers) {
    all = all && windowed;
    any = any || windowed;
  }
  if (all || !any) spec.window_layers.clear();
  if (!any) spec.window = 0;
}

void read_training(Reader& in, ModelSpec& spec) {
  spec.attention_dropout = in.get("attention_dropout", 0.0);
  spec.residual_dropout = in.get("resid_pdrop", 0.0);
  spec.embedding_dropout = in.get("embd_pdrop", 0.0);
  spec.init_std = in.get("initializer_range", 0.02);
  spec.init_scale_by_depth = in.get("init_scale_by_depth", spec.family == Family::kGpt2);
  if (in.has("bos_token_id")) spec.bos_id = in.get<std::int64_t>("bos_token_id", 0);
  if (!in.has("eos_token_id")) return;
  const Json& eos = in.keys().at("eos_token_id");
  spec.eos_ids =
      eos.is_array() ? eos.get<std::vector<std::int64_t>>() : std::vector{eos.get<std::int64_t>()};
}

void read_experts(Reader& in, ModelSpec& spec) {
  Experts experts;
  experts.num_experts = in.required("num_experts");
  experts.top_k = in.required("num_experts_per_tok");
  if (spec.family == Family::kMixtral) {
    experts.ffn = spec.ffn;
    experts.aux_loss_coef = in.get("router_aux_loss_coef", 0.001);
  } else if (spec.family == Family::kQwen3Moe) {
    experts.ffn = in.required("moe_intermediate_size");
    experts.normalise_top_k = in.get("norm_topk_prob", false);
    experts.sparse_step = in.integer("decoder_sparse_step", 1);
    experts.dense_layers = in.get<std::vector<std::int64_t>>("mlp_only_layers", {});
    experts.aux_loss_coef = in.get("router_aux_loss_coef", 0.001);
  } else {
    experts.ffn = in.required("moe_intermediate_size");
    experts.num_shared = in.integer("n_shared_experts", 1);
    experts.first_dense = in.integer("first_k_dense_replace", 3);
    experts.score = RouterScore::kSigmoid;
    experts.normalise_top_k = in.get("norm_topk_prob", true);
    experts.routed_scaling = in.get("routed_scaling_factor", 2.5);
    experts.num_groups = in.integer("n_group", 8);
    experts.top_k_groups = in.integer("topk_group", 4);
    experts.selection_bias = true;
  }
  spec.experts = experts;
}

void read_latent(Reader& in, ModelSpec& spec) {
  LatentAttention latent;
  latent.q_lora_rank = in.integer("q_lora_rank", 0);
  latent.kv_lora_rank = in.required("kv_lora_rank");
  latent.qk_nope_head_dim = in.required("qk_nope_head_dim");
  latent.qk_rope_head_dim = in.required("qk_rope_head_dim");
  latent.v_head_dim = in.required("v_head_dim");
  spec.head_dim = latent.qk_nope_head_dim + latent.qk_rope_head_dim;
  spec.latent = latent;
}

struct FixedKey {
  const char* name;
  Json value;
};

// Keys whose other values would make another model.
void refuse_other_models(Reader& in) {
  const std::array<FixedKey, 9> fixed{{{"scale_attn_weights", true},
                                       {"scale_attn_by_inverse_layer_idx", false},
                                       {"add_cross_attention", false},
                                       {"partial_rotary_factor", 1},
                                       {"router_jitter_noise", 0},
                                       {"rope_interleave", true},
                                       {"moe_layer_freq", 1},
                                       {"topk_method", "noaux_tc"},
                                       {"scoring_func", "sigmoid"}}};
  for (const FixedKey& key : fixed) {
    const auto found = in.keys().find(key.name);
    if (found == in.keys().end() || found->is_null() || *found == key.value) continue;
    in.problem(key.name, fmt::format("{} = {} is not supported", key.name, to_toml_value(*found)),
               fmt::format("{} is", to_toml_value(key.value)));
  }
}

}  // namespace

ModelSpec model_from_keys(const Json& keys, const Locate& where, Problems& problems) {
  Reader in(keys, where, problems);
  ModelSpec spec;
  if (!read_family(in, spec)) return spec;
  read_shape(in, spec);
  read_biases(in, spec);
  read_activation(in, spec);
  read_window(in, spec);
  read_training(in, spec);
  const bool deepseek = spec.family == Family::kDeepseekV3;
  if (deepseek || spec.family == Family::kMixtral || spec.family == Family::kQwen3Moe) {
    read_experts(in, spec);
  }
  if (deepseek) read_latent(in, spec);
  if (spec.position == PositionKind::kRope) {
    spec.rope = rope_from_keys(keys, spec.family == Family::kMixtral ? 1e6 : 1e4,
                               spec.max_positions, where, problems);
  }
  refuse_other_models(in);
  return spec;
}

ModelResult model_from_hub_json(std::string_view json, std::string_view where) {
  ModelResult result;
  Json keys = Json::parse(json, nullptr, false);
  if (!keys.is_object()) {
    result.problems.push_back({std::string(where), "not a JSON object", "expected a config.json"});
    return result;
  }
  const Locate locate = [where](const std::string& key) {
    return fmt::format("{}: {}", where, key);
  };
  canonicalise(keys, locate, result.problems);
  result.spec = model_from_keys(keys, locate, result.problems);
  if (result.problems.empty()) {
    for (Problem& problem : check(result.spec)) {
      problem.where = locate(problem.where.substr(problem.where.find('.') + 1));
      result.problems.push_back(problem);
    }
  }
  return result;
}

}  // namespace quatrain
