// SPDX-License-Identifier: Apache-2.0
// config.json files of transformers v4 and v5: the same model from either, and refusals.
#include "quatrain/spec/model_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace quatrain {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

Json llama() {
  return {{"model_type", "llama"},
          {"vocab_size", 100},
          {"hidden_size", 64},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"intermediate_size", 96},
          {"rms_norm_eps", 1e-5},
          {"max_position_embeddings", 512},
          {"tie_word_embeddings", false},
          {"architectures", {"Llama"}},
          {"use_cache", true}};
}
ModelSpec read(const Json& keys) {
  ModelResult result = model_from_hub_json(keys.dump(), "config.json");
  EXPECT_TRUE(result.problems.empty()) << to_string(result.problems);
  return result.spec;
}
std::string refusal(const Json& keys) {
  return to_string(model_from_hub_json(keys.dump(), "config.json").problems);
}

TEST(ModelIo, CarriesWhatItDoesNotModel) {
  Json source = llama();
  source["pad_token_id"] = 7;
  source["our_own"] = {{"nested", {1, 2}}};
  source["quantization_config"] = {{"bits", 8}};
  source["num_nextn_predict_layers"] = 1;
  source["dtype"] = "float32";
  ModelSpec spec = read(source);
  spec.vocab = 128;
  const Json keys = Json::parse(to_hub_json(spec, source.dump()));
  EXPECT_EQ(read(keys), spec);
  EXPECT_EQ(keys["vocab_size"], 128);
  EXPECT_EQ(keys["architectures"], Json({"LlamaForCausalLM"}));
  for (const char* key : {"pad_token_id", "our_own", "use_cache"}) {
    EXPECT_EQ(keys[key], source[key]) << key;
  }
  for (const char* key : {"quantization_config", "num_nextn_predict_layers", "dtype"}) {
    EXPECT_FALSE(keys.contains(key)) << key;
  }
  for (const char* none : {"", "[]", "{"}) EXPECT_EQ(to_hub_json(spec, none), to_hub_json(spec));
}

// Whichever names one of two families' files give a key, ours is the only one.
TEST(ModelIo, CarriesNoSecondNameOfAKey) {
  const Json source{{"model_type", "gpt2"}, {"hidden_size", 8},          {"num_hidden_layers", 1},
                    {"n_head", 2},          {"vocab_size", 11},          {"n_positions", 12},
                    {"n_ctx", 12},          {"rope_parameters", nullptr}};
  const Json keys = Json::parse(to_hub_json(read(source), source.dump()));
  EXPECT_EQ(keys["n_embd"], 8);
  EXPECT_EQ(keys["n_ctx"], 12);
  for (const char* key : {"hidden_size", "num_hidden_layers", "rope_parameters"}) {
    EXPECT_FALSE(keys.contains(key)) << key;
  }
}

TEST(ModelIo, RopeKeysOfBothGenerations) {
  const Json scaling{{"factor", 8.0},
                     {"low_freq_factor", 1.0},
                     {"high_freq_factor", 4.0},
                     {"original_max_position_embeddings", 128}};
  Json v4 = llama();
  v4["rope_theta"] = 5e5;
  v4["rope_scaling"] = scaling;
  v4["rope_scaling"]["rope_type"] = "llama3";
  v4["torch_dtype"] = "bfloat16";
  Json v5 = llama();
  v5["rope_parameters"] = v4["rope_scaling"];
  v5["rope_parameters"]["rope_theta"] = 5e5;
  v5["dtype"] = "bfloat16";
  EXPECT_EQ(read(v4), read(v5));
  EXPECT_EQ(read(v5).rope.theta, 5e5);
  EXPECT_EQ(read(v5).rope.scaling, RopeScaling::kLlama3);
  Json older = v4;
  older["rope_scaling"].erase("rope_type");
  older["rope_scaling"]["type"] = "llama3";
  EXPECT_EQ(read(older), read(v4));
  Json both = v5;
  both["rope_theta"] = 5e5;
  both["rope_scaling"] = older["rope_scaling"];
  EXPECT_EQ(read(both), read(v4));
  both["rope_theta"] = 1e4;
  EXPECT_THAT(refusal(both), HasSubstr("rope_theta = 10000.0 disagrees with rope_parameters"));
  both["rope_theta"] = 5e5;
  both["rope_scaling"]["factor"] = 4.0;
  EXPECT_THAT(refusal(both), HasSubstr("disagrees with rope_parameters"));
}

TEST(ModelIo, DefaultRopeOfV5IsNoScaling) {
  Json v5 = llama();
  v5["rope_parameters"] = {{"rope_theta", 2e4}, {"rope_type", "default"}};
  EXPECT_EQ(read(v5).rope.theta, 2e4);
  EXPECT_EQ(read(v5).rope.scaling, RopeScaling::kNone);
}

TEST(ModelIo, EosIsOneOrMany) {
  Json keys = llama();
  keys["eos_token_id"] = 7;
  EXPECT_EQ(read(keys).eos_ids, std::vector<std::int64_t>{7});
  keys["eos_token_id"] = {7, 9};
  EXPECT_EQ(read(keys).eos_ids, (std::vector<std::int64_t>{7, 9}));
  keys["eos_token_id"] = nullptr;
  EXPECT_TRUE(read(keys).eos_ids.empty());
}

TEST(ModelIo, FamilyDefaults) {
  Json keys = llama();
  keys.erase("num_key_value_heads");
  EXPECT_EQ(read(keys).kv_heads, 4);
  EXPECT_EQ(read(keys).head_dim, 16);
  keys["model_type"] = "qwen3";
  EXPECT_EQ(read(keys).head_dim, 128);
  EXPECT_TRUE(read(keys).qk_norm);
  keys["model_type"] = "qwen2";
  EXPECT_TRUE(read(keys).qkv_bias);
  EXPECT_FALSE(read(keys).out_bias);
  const Json gpt2{{"model_type", "gpt2"}, {"vocab_size", 99},   {"n_embd", 32},      {"n_layer", 1},
                  {"n_head", 4},          {"n_inner", nullptr}, {"resid_pdrop", 0.1}};
  const ModelSpec spec = read(gpt2);
  EXPECT_EQ(spec.ffn, 128);
  EXPECT_EQ(spec.max_positions, 1024);
  EXPECT_TRUE(spec.tied && spec.qkv_bias && spec.out_bias && spec.mlp_bias);
  EXPECT_EQ(spec.residual_dropout, 0.1);
  EXPECT_EQ(spec.norm, NormKind::kLayerNorm);
}

TEST(ModelIo, SlidingWindows) {
  Json keys = llama();
  keys["model_type"] = "qwen2";
  keys["sliding_window"] = 32;
  EXPECT_EQ(read(keys).window, 0);  // the switch is off
  keys["use_sliding_window"] = true;
  keys["max_window_layers"] = 1;
  EXPECT_EQ(read(keys).layer_window(0), 0);
  EXPECT_EQ(read(keys).layer_window(1), 32);
  keys["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_EQ(read(keys).layer_window(0), 32);
  EXPECT_EQ(read(keys).layer_window(1), 0);
  EXPECT_EQ(read(Json::parse(to_hub_json(read(keys)))), read(keys));
  keys["layer_types"] = {"sliding_attention"};
  EXPECT_THAT(refusal(keys), HasSubstr("1 layer types for 2 layers"));
}

TEST(ModelIo, ExpertsUnderEitherName) {
  Json keys = llama();
  keys.update({{"model_type", "qwen3_moe"},
               {"num_experts", 8},
               {"num_experts_per_tok", 2},
               {"moe_intermediate_size", 32},
               {"mlp_only_layers", {1}}});
  Json v5 = keys;
  v5.erase("num_experts");
  v5["num_local_experts"] = 8;
  EXPECT_EQ(read(keys), read(v5));
  EXPECT_TRUE(read(keys).layer_is_sparse(0));
  EXPECT_FALSE(read(keys).layer_is_sparse(1));
  v5["num_experts"] = 4;
  EXPECT_THAT(refusal(v5), HasSubstr("disagrees"));
}

TEST(ModelIo, RefusesOtherModels) {
  const auto with = [](const char* key, const Json& value) {
    Json keys = llama();
    keys[key] = value;
    return refusal(keys);
  };
  EXPECT_THAT(with("model_type", "mamba"), HasSubstr("\"mamba\" is not supported"));
  EXPECT_THAT(with("hidden_act", "gelu"), HasSubstr("activation \"gelu\""));
  EXPECT_THAT(with("partial_rotary_factor", 0.5), HasSubstr("partial_rotary_factor = 0.5"));
  EXPECT_THAT(with("hidden_size", "64"), HasSubstr("config.json: hidden_size"));
  EXPECT_THAT(with("num_hidden_layers", 0), HasSubstr("num_hidden_layers = 0 is too small"));
  EXPECT_THAT(with("num_key_value_heads", 3), HasSubstr("not a multiple of 3"));
  EXPECT_EQ(with("some_unknown_key", 3), "");
  EXPECT_THAT(to_string(model_from_hub_json("[1]", "x").problems), HasSubstr("not a JSON object"));
  EXPECT_THAT(to_string(model_from_hub_json("{\"a\":", "x").problems), HasSubstr("not a JSON"));
}

}  // namespace
}  // namespace quatrain
