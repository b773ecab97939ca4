// SPDX-License-Identifier: Apache-2.0
// Boxes of a tensor-parallel rank: together they are each parameter, replicas counted.
#include "quatrain/spec/tensor_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "quatrain/spec/model_io.h"

namespace quatrain {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::map<std::string, LocalParameter> by_name(const ModelSpec& model, const TensorSplit& split) {
  std::map<std::string, LocalParameter> result;
  for (LocalParameter& p : local_parameters(model, split)) result.emplace(p.info.name, p);
  return result;
}

TEST(TensorSplit, BoxesOfAllRanksAreTheModel) {
  for (const char* name : {"tiny-gpt2", "tiny-llama", "tiny-qwen2", "tiny-qwen3"}) {
    const ModelSpec model = catalog_model(name).spec;
    for (int degree : {1, 2, 4, 8}) {
      SCOPED_TRACE(::testing::Message() << name << " tp " << degree);
      std::map<std::string, std::int64_t> held;
      for (int rank = 0; rank < degree; ++rank) {
        for (const LocalParameter& p : local_parameters(model, {degree, rank, true})) {
          if (rank % p.replicas == 0) held[p.info.name] += p.box.numel();
        }
      }
      for (const ParameterInfo& info : parameters(model)) {
        EXPECT_EQ(held[info.name], info.numel()) << info.name;
      }
    }
  }
}

TEST(TensorSplit, UnevenVocabularyNeedsNoPadding) {
  const ModelSpec model = catalog_model("tiny-llama").spec;  // 251 words
  const auto last = by_name(model, {4, 3, false});
  EXPECT_THAT(last.at("lm_head.weight").box.begin, ElementsAre(189, 0));
  EXPECT_THAT(last.at("lm_head.weight").shape(), ElementsAre(62, 64));
}

TEST(TensorSplit, case_094_FewerKeyHeadsThanRanksAreRepeated) {
  const ModelSpec model = catalog_model("tiny-qwen2").spec;  // 8 query heads, 2 kv heads of 8
  const auto rank = by_name(model, {8, 5, false});
  const LocalParameter& q = rank.at("model.layers.0.self_attn.q_proj.weight");
  const LocalParameter& k = rank.at("model.layers.0.self_attn.k_proj.weight");
  EXPECT_THAT(q.box.begin, ElementsAre(40, 0));
  EXPECT_EQ(q.replicas, 1);
  EXPECT_FALSE(q.partial_grad);
  EXPECT_THAT(k.box.begin, ElementsAre(8, 0));
  EXPECT_THAT(k.shape(), ElementsAre(8, 64));
  EXPECT_EQ(k.replicas, 4);
  EXPECT_TRUE(k.partial_grad);
}

TEST(TensorSplit, CopiesThatMeetOtherRowsOrHeadsHoldPartialGradients) {
  const ModelSpec model = catalog_model("tiny-qwen3").spec;
  for (bool sequence_parallel : {false, true}) {
    const auto rank = by_name(model, {2, 1, sequence_parallel});
    EXPECT_EQ(rank.at("model.norm.weight").partial_grad, sequence_parallel);
    EXPECT_TRUE(rank.at("model.layers.0.self_attn.q_norm.weight").partial_grad);
  }
}

TEST(TensorSplit, RefusalsNameTheDegreesThatFit) {
  ModelSpec model = catalog_model("tiny-llama").spec;
  model.heads = 6;
  model.kv_heads = 3;
  const std::string text = to_string(check_split(model, {.degree = 2}));
  EXPECT_THAT(text, HasSubstr("tp = 2 neither divides 3 key and value heads nor is a multiple"));
  EXPECT_THAT(text, HasSubstr("degrees that fit: 1 3 6"));
  EXPECT_THROW(local_parameters(model, {2, 0, false}), ConfigError);
}

}  // namespace
}  // namespace quatrain
