// SPDX-License-Identifier: Apache-2.0
// The list of parameters: names and order, what decays, how tensor parallelism cuts, where GPT-2's
// fused matrices lie in a Hugging Face file.
#include "quatrain/spec/parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "quatrain/spec/model_io.h"

namespace quatrain {
namespace {

std::map<std::string, ParameterInfo> by_name(const ModelSpec& spec) {
  std::map<std::string, ParameterInfo> result;
  for (const ParameterInfo& info : parameters(spec)) {
    EXPECT_TRUE(result.emplace(info.name, info).second) << info.name << " twice";
  }
  return result;
}

std::vector<std::string> block_names(const ModelSpec& spec, const std::string& prefix) {
  std::vector<std::string> names;
  for (const ParameterInfo& info : parameters(spec)) {
    if (info.name.starts_with(prefix)) names.push_back(info.name.substr(prefix.size()));
  }
  return names;
}

TEST(Parameters, BlockOrder) {
  EXPECT_THAT(block_names(catalog_model("tiny-qwen2").spec, "model.layers.1."),
              ::testing::ElementsAre("input_layernorm.weight", "self_attn.q_proj.weight",
                                     "self_attn.k_proj.weight", "self_attn.v_proj.weight",
                                     "self_attn.q_proj.bias", "self_attn.k_proj.bias",
                                     "self_attn.v_proj.bias", "self_attn.o_proj.weight",
                                     "post_attention_layernorm.weight", "mlp.gate_proj.weight",
                                     "mlp.up_proj.weight", "mlp.down_proj.weight"));
  EXPECT_THAT(block_names(catalog_model("tiny-gpt2").spec, "transformer.h.0."),
              ::testing::ElementsAre(
                  "ln_1.weight", "ln_1.bias", "attn.q_proj.weight", "attn.k_proj.weight",
                  "attn.v_proj.weight", "attn.q_proj.bias", "attn.k_proj.bias", "attn.v_proj.bias",
                  "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight", "ln_2.bias",
                  "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"));
  EXPECT_THAT(block_names(catalog_model("tiny-qwen3").spec, "model.layers.0.self_attn."),
              ::testing::ElementsAre("q_proj.weight", "k_proj.weight", "v_proj.weight",
                                     "q_norm.weight", "k_norm.weight", "o_proj.weight"));
}

TEST(Parameters, LayersAndEnds) {
  const auto tied = parameters(catalog_model("tiny-qwen2").spec);
  EXPECT_EQ(tied.front().name, "model.embed_tokens.weight");
  EXPECT_EQ(tied.front().layer, -1);
  EXPECT_EQ(tied.back().name, "model.norm.weight");
  EXPECT_EQ(tied.back().layer, 4);
  const auto untied = parameters(catalog_model("tiny-llama").spec);
  EXPECT_EQ(untied.back().name, "lm_head.weight");
  EXPECT_EQ(untied.back().layer, 4);
}

TEST(Parameters, OnlyMatricesDecayAndOutputsStartSmaller) {
  for (const char* model : {"tiny-gpt2", "tiny-qwen2", "tiny-qwen3", "deepseek-v3"}) {
    for (const ParameterInfo& info : parameters(catalog_model(model).spec)) {
      EXPECT_EQ(info.decay, info.shape.size() == 2) << info.name;
      if (info.shape.size() == 2) continue;
      const bool gain = info.name.ends_with("weight");
      EXPECT_EQ(info.init, gain ? Init::kOnes : Init::kZeros) << info.name;
    }
  }
  const auto gpt2 = by_name(catalog_model("tiny-gpt2").spec);
  EXPECT_EQ(gpt2.at("transformer.h.0.attn.q_proj.weight").init_std, 0.02);
  for (const char* name :
       {"transformer.h.0.attn.c_proj.weight", "transformer.h.3.mlp.c_proj.weight"}) {
    EXPECT_EQ(gpt2.at(name).init, Init::kNormalScaledByDepth);
    EXPECT_DOUBLE_EQ(gpt2.at(name).init_std, 0.02 / std::sqrt(8.0));
  }
}

TEST(Parameters, Gpt2SourcesTileTheFusedMatrices) {
  const auto spec = catalog_model("gpt2").spec;
  std::int64_t weight_end = 0;
  std::int64_t bias_end = 0;
  for (const ParameterInfo& info : parameters(spec)) {
    if (info.hub.tensor == "transformer.h.0.attn.c_attn.weight") {
      EXPECT_TRUE(info.hub.transposed);
      EXPECT_EQ(info.hub.begin, weight_end);
      EXPECT_EQ(info.hub.rows, info.shape[0]);
      weight_end += info.hub.rows;
    }
    if (info.hub.tensor == "transformer.h.0.attn.c_attn.bias") {
      EXPECT_FALSE(info.hub.transposed);
      EXPECT_EQ(info.hub.begin, bias_end);
      bias_end += info.hub.rows;
    }
  }
  EXPECT_EQ(weight_end, 3 * 768);
  EXPECT_EQ(bias_end, 3 * 768);
  const auto names = by_name(spec);
  EXPECT_EQ(names.at("transformer.h.0.mlp.c_fc.weight").hub,
            (HubSource{"transformer.h.0.mlp.c_fc.weight", true, 0, 0}));
  EXPECT_EQ(names.at("transformer.wte.weight").hub, HubSource{});
}

ShardSpec on_tp(int dim, std::int64_t grain = 1) {
  return {{{Axis::kTp, Shard{.dim = dim, .grain = grain}}}};
}

TEST(Parameters, PlacementOverTensorParallelism) {
  const auto p = by_name(catalog_model("tiny-qwen3").spec);
  const std::string in = "model.layers.0.";
  EXPECT_EQ(p.at("model.embed_tokens.weight").placement, on_tp(0));
  EXPECT_EQ(p.at(in + "self_attn.k_proj.weight").placement, on_tp(0, 16));
  EXPECT_EQ(p.at(in + "self_attn.o_proj.weight").placement, on_tp(1, 16));
  EXPECT_EQ(p.at(in + "self_attn.q_norm.weight").placement, ShardSpec{});
  EXPECT_EQ(p.at(in + "mlp.gate_proj.weight").placement, on_tp(0));
  EXPECT_EQ(p.at(in + "mlp.down_proj.weight").placement, on_tp(1));
  EXPECT_EQ(p.at(in + "input_layernorm.weight").placement, ShardSpec{});
  const auto g = by_name(catalog_model("tiny-gpt2").spec);
  EXPECT_EQ(g.at("transformer.h.0.attn.v_proj.bias").placement, on_tp(0, 8));
  EXPECT_EQ(g.at("transformer.h.0.mlp.c_fc.bias").placement, on_tp(0));
  EXPECT_EQ(g.at("transformer.h.0.attn.c_proj.bias").placement, ShardSpec{});
  EXPECT_EQ(g.at("transformer.wpe.weight").placement, ShardSpec{});
}

TEST(Parameters, ExpertsAndLatentAttention) {
  const auto p = by_name(catalog_model("mixtral-8x7b").spec);
  const auto& w2 = p.at("model.layers.31.block_sparse_moe.experts.7.w2.weight");
  EXPECT_EQ(w2.shape, (std::vector<std::int64_t>{4096, 14336}));
  EXPECT_EQ(w2.expert, 7);
  EXPECT_EQ(p.at("model.layers.0.block_sparse_moe.gate.weight").expert, -1);
  const auto d = by_name(catalog_model("deepseek-v3").spec);
  EXPECT_TRUE(d.contains("model.layers.2.mlp.gate_proj.weight"));
  EXPECT_FALSE(d.contains("model.layers.3.mlp.gate_proj.weight"));
  EXPECT_FALSE(d.at("model.layers.3.mlp.gate.e_score_correction_bias").trainable);
  EXPECT_EQ(d.at("model.layers.60.self_attn.kv_b_proj.weight").shape,
            (std::vector<std::int64_t>{128 * 256, 512}));
  EXPECT_TRUE(d.contains("model.layers.60.mlp.shared_experts.down_proj.weight"));
}

TEST(Parameters, TrainablePatterns) {
  auto list = parameters(catalog_model("tiny-llama").spec);
  EXPECT_TRUE(set_trainable(list, {}).empty());
  for (const auto& info : list) EXPECT_TRUE(info.trainable);
  const Problems problems = set_trainable(list, {"*.mlp.*", "lm_hed*"});
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].what.find("lm_hed*"), std::string::npos);
  for (const auto& info : list) {
    EXPECT_EQ(info.trainable, info.name.find(".mlp.") != std::string::npos) << info.name;
  }
}

}  // namespace
}  // namespace quatrain
