// SPDX-License-Identifier: Apache-2.0
// The table of config.json keys, their types and their aliases.
#include "quatrain/spec/model_keys.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "quatrain/base/text.h"
#include "quatrain/spec/toml_document.h"

namespace quatrain {
namespace {

using Json = nlohmann::json;
using enum KeyType;

constexpr std::string_view kMoe = "mixtral qwen3_moe deepseek_v3";
constexpr std::string_view kRoped = "llama qwen2 qwen3 mixtral qwen3_moe deepseek_v3";
constexpr std::string_view kWindowed = "qwen2 qwen3 qwen3_moe";

// name, aliases, type, families, fallback, help
constexpr std::array kKeys{
    ModelKey{"model_type", "", kString, "", "required", "family of the architecture"},
    ModelKey{"vocab_size", "", kInt, "", "required", "rows of the embedding"},
    ModelKey{"hidden_size", "n_embd", kInt, "", "required", "width of the residual stream"},
    ModelKey{"num_hidden_layers", "n_layer", kInt, "", "required", "blocks"},
    ModelKey{"num_attention_heads", "n_head", kInt, "", "required", "query heads"},
    ModelKey{"num_key_value_heads", "", kInt, kRoped, "num_attention_heads", "key and value heads"},
    ModelKey{"head_dim", "", kInt, kRoped, "hidden_size / heads; qwen3: 128", "width of one head"},
    ModelKey{"intermediate_size", "n_inner", kInt, "", "required; gpt2: 4 hidden_size",
             "width of a dense MLP (mixtral: of one expert)"},
    ModelKey{"max_position_embeddings", "n_positions", kInt, "", "the family's",
             "longest sequence, tokens"},
    ModelKey{"hidden_act", "activation_function", kString, "", "silu; gpt2: gelu_new",
             "activation of the MLP"},
    ModelKey{"rms_norm_eps", "layer_norm_epsilon", kFloat, "", "1e-6; gpt2, mixtral: 1e-5",
             "epsilon of the norms"},
    ModelKey{"attention_bias", "", kBool, "llama qwen3 qwen3_moe deepseek_v3", "false",
             "biases of q, k, v and the output projection"},
    ModelKey{"mlp_bias", "", kBool, "llama", "false", "biases of the MLP"},
    ModelKey{"tie_word_embeddings", "", kBool, "", "false; gpt2: true",
             "the head is the token embedding"},
    ModelKey{"rope_theta", "", kFloat, kRoped, "10000; mixtral: 1000000",
             "base of the rotary angles"},
    ModelKey{"rope_scaling", "", kTable, kRoped, "none",
             "{ rope_type = linear|llama3|yarn, factor, ... }"},
    ModelKey{"rope_parameters", "", kTable, kRoped, "none",
             "rope_theta and rope_scaling in one table (transformers v5)"},
    ModelKey{"use_sliding_window", "", kBool, kWindowed, "false", "switches sliding_window on"},
    ModelKey{"sliding_window", "", kInt, "qwen2 qwen3 qwen3_moe mixtral", "none",
             "attention window, tokens"},
    ModelKey{"max_window_layers", "", kInt, kWindowed, "28", "first layer with a window"},
    ModelKey{"layer_types", "", kStringList, kWindowed, "from max_window_layers",
             "full_attention or sliding_attention, one a layer"},
    ModelKey{"attention_dropout", "attn_pdrop", kFloat, "", "0",
             "dropout of attention weights (refused in training)"},
    ModelKey{"resid_pdrop", "", kFloat, "", "0", "dropout of what a block adds"},
    ModelKey{"embd_pdrop", "", kFloat, "", "0", "dropout after the embedding"},
    ModelKey{"initializer_range", "", kFloat, "", "0.02", "standard deviation of new matrices"},
    ModelKey{"init_scale_by_depth", "", kBool, "", "false; gpt2: true",
             "new output projections at initializer_range / sqrt(2 layers)"},
    ModelKey{"bos_token_id", "", kInt, "", "none", "token that begins a text"},
    ModelKey{"eos_token_id", "", kIntOrList, "", "none", "tokens that end a text"},
    ModelKey{"num_experts", "num_local_experts n_routed_experts", kInt, kMoe, "required",
             "routed experts a layer"},
    ModelKey{"num_experts_per_tok", "", kInt, kMoe, "required", "experts that a token visits"},
    ModelKey{"moe_intermediate_size", "", kInt, "qwen3_moe deepseek_v3", "required",
             "width of one expert"},
    ModelKey{"norm_topk_prob", "", kBool, "qwen3_moe deepseek_v3", "false; deepseek_v3: true",
             "chosen experts' weights sum to 1"},
    ModelKey{"router_aux_loss_coef", "", kFloat, "mixtral qwen3_moe", "0.001",
             "weight of the load-balancing loss"},
    ModelKey{"decoder_sparse_step", "", kInt, "qwen3_moe", "1", "every n-th layer has experts"},
    ModelKey{"mlp_only_layers", "", kIntList, "qwen3_moe", "[]", "layers without experts"},
    ModelKey{"n_shared_experts", "", kInt, "deepseek_v3", "1", "experts that every token visits"},
    ModelKey{"first_k_dense_replace", "", kInt, "deepseek_v3", "3", "first layers without experts"},
    ModelKey{"n_group", "", kInt, "deepseek_v3", "8", "groups of experts"},
    ModelKey{"topk_group", "", kInt, "deepseek_v3", "4", "groups that a token may visit"},
    ModelKey{"routed_scaling_factor", "", kFloat, "deepseek_v3", "2.5",
             "factor of the routed experts' sum"},
    ModelKey{"scoring_func", "", kString, "deepseek_v3", "sigmoid", "router scores; sigmoid alone"},
    ModelKey{"topk_method", "", kString, "deepseek_v3", "noaux_tc", "noaux_tc alone"},
    ModelKey{"moe_layer_freq", "", kInt, "deepseek_v3", "1", "1 alone"},
    ModelKey{"q_lora_rank", "", kInt, "deepseek_v3", "0", "rank of compressed queries; 0: none"},
    ModelKey{"kv_lora_rank", "", kInt, "deepseek_v3", "required",
             "rank of compressed keys, values"},
    ModelKey{"qk_nope_head_dim", "", kInt, "deepseek_v3", "required",
             "width of a head's part without positions"},
    ModelKey{"qk_rope_head_dim", "", kInt, "deepseek_v3", "required",
             "width of a head's part with positions"},
    ModelKey{"v_head_dim", "", kInt, "deepseek_v3", "required", "width of a value head"},
};

constexpr std::array<std::string_view, 34> kIgnored{"_name_or_path",
                                                    "architectures",
                                                    "auto_map",
                                                    "torch_dtype",
                                                    "dtype",
                                                    "transformers_version",
                                                    "use_cache",
                                                    "pad_token_id",
                                                    "pretraining_tp",
                                                    "n_ctx",
                                                    "output_router_logits",
                                                    "summary_activation",
                                                    "summary_first_dropout",
                                                    "summary_proj_to_labels",
                                                    "summary_type",
                                                    "summary_use_proj",
                                                    "task_specific_params",
                                                    "reorder_and_upcast_attn",
                                                    "num_nextn_predict_layers",
                                                    "num_mtp_layers",
                                                    "quantization_config",
                                                    "ep_size",
                                                    "aux_loss_alpha",
                                                    "seq_aux",
                                                    "qk_head_dim",
                                                    "rope_interleave",
                                                    "scale_attn_weights",
                                                    "scale_attn_by_inverse_layer_idx",
                                                    "add_cross_attention",
                                                    "partial_rotary_factor",
                                                    "router_jitter_noise",
                                                    "attn_implementation",
                                                    "is_decoder",
                                                    "_attn_implementation"};

bool in_words_list(std::string_view list, std::string_view word) {
  std::size_t begin = 0;
  while (begin < list.size()) {
    const std::size_t end = std::min(list.find(' ', begin), list.size());
    if (list.substr(begin, end - begin) == word) return true;
    begin = end + 1;
  }
  return false;
}

// Gives aliased keys their canonical name.
Json renamed(const Json& keys, const Locate& where, Problems& problems) {
  Json result = Json::object();
  std::map<std::string, std::string> written_as;
  for (const auto& [key, value] : keys.items()) {
    const ModelKey* known = find_model_key(key);
    const std::string name = known ? std::string(known->name) : key;
    const auto before = result.find(name);
    if (before != result.end() && !before->is_null() && !value.is_null() && *before != value) {
      problems.push_back({where(key),
                          fmt::format("{} = {} disagrees with {} = {}", key, to_toml_value(value),
                                      written_as[name], to_toml_value(*before)),
                          "they are two names of one key: keep one"});
      continue;
    }
    if (before != result.end() && value.is_null()) continue;
    result[name] = value;
    written_as[name] = key;
  }
  return result;
}

void drop_wrong_types(Json& keys, const Locate& where, Problems& problems) {
  for (const ModelKey& key : model_keys()) {
    const auto found = keys.find(key.name);
    if (found == keys.end() || found->is_null() || has_type(*found, key.type)) continue;
    problems.push_back({where(std::string(key.name)),
                        fmt::format("{} is {}", to_toml_value(*found), type_in_words(*found)),
                        fmt::format("expected {}", in_words(key.type))});
    *found = Json::object({{"wrong type", true}});
  }
}

// rope_parameters = { rope_theta, rope_type, ... } becomes rope_theta and rope_scaling; where both
// forms are given they must agree.
void split_rope_parameters(Json& keys, const Locate& where, Problems& problems) {
  const auto found = keys.find("rope_parameters");
  if (found == keys.end()) return;
  Json scaling = *found;
  keys.erase(found);
  if (!scaling.is_object() || scaling.contains("wrong type")) return;
  Json v5 = Json::object();
  if (scaling.contains("rope_theta")) {
    v5["rope_theta"] = scaling["rope_theta"];
    scaling.erase("rope_theta");
  }
  if (scaling.value("rope_type", Json("default")) != Json("default")) v5["rope_scaling"] = scaling;
  const auto differs = [&](const char* key) {
    const auto old = keys.find(key);
    return old != keys.end() && !old->is_null() && (!v5.contains(key) || v5[key] != *old);
  };
  for (const char* key : {"rope_theta", "rope_scaling"}) {
    if (std::string_view(key) == "rope_scaling" && keys.contains(key) && keys[key].is_object() &&
        !keys[key].contains("rope_type") && keys[key].contains("type")) {
      keys[key]["rope_type"] = keys[key]["type"];  // the name of before v4.43
      keys[key].erase("type");
    }
    if (differs(key)) {
      problems.push_back(
          {where(key),
           fmt::format("{} = {} disagrees with rope_parameters", key, to_toml_value(keys[key])),
           "the two forms say the same thing: keep one"});
    } else if (v5.contains(key)) {
      keys[key] = v5[key];
    }
  }
}

}  // namespace

std::string_view in_words(KeyType type) {
  switch (type) {
    case kInt:
      return "an integer";
    case kFloat:
      return "a number";
    case kBool:
      return "true or false";
    case kString:
      return "a string";
    case kIntList:
      return "a list of integers";
    case kStringList:
      return "a list of strings";
    case kIntOrList:
      return "an integer or a list of integers";
    case kTable:
      return "a table";
  }
  return "";
}

bool has_type(const Json& value, KeyType type) {
  const auto all = [&value](auto&& holds) {
    return value.is_array() && std::all_of(value.begin(), value.end(), holds);
  };
  const auto is_int = [](const Json& item) { return item.is_number_integer(); };
  switch (type) {
    case kInt:
      return is_int(value);
    case kFloat:
      return value.is_number();
    case kBool:
      return value.is_boolean();
    case kString:
      return value.is_string();
    case kIntList:
      return all(is_int);
    case kStringList:
      return all([](const Json& item) { return item.is_string(); });
    case kIntOrList:
      return is_int(value) || all(is_int);
    case kTable:
      return value.is_object();
  }
  return false;
}

std::span<const ModelKey> model_keys() { return kKeys; }

const ModelKey* find_model_key(std::string_view name) {
  for (const ModelKey& key : kKeys) {
    if (key.name == name || in_words_list(key.aliases, name)) return &key;
  }
  return nullptr;
}

bool is_ignored_model_key(std::string_view name) {
  return std::find(kIgnored.begin(), kIgnored.end(), name) != kIgnored.end();
}

bool applies_to(const ModelKey& key, std::string_view family) {
  return key.families.empty() || in_words_list(key.families, family);
}

void canonicalise(Json& keys, const Locate& where, Problems& problems) {
  keys = renamed(keys, where, problems);
  drop_wrong_types(keys, where, problems);
  split_rope_parameters(keys, where, problems);
}

}  // namespace quatrain
