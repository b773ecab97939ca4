// SPDX-License-Identifier: Apache-2.0
// Planted faults: each is reported with the first tensor that it reaches and, where it is a factor
// or an axis's doing, with the factor or the axis.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "quatrain/verify/inject.h"
#include "tests/tensor/grid.h"
#include "tests/verify/question.h"

namespace quatrain {
namespace {

using ::testing::HasSubstr;

struct Planted {
  std::string fault;
  Geometry geometry;
  // What is to be found: the first tensor, the axes, part of the hint.
  std::string tensor;
  std::vector<AxisSet> axes;
  std::string hint;
  ModelSpec spec = tensor_llama();
  int step = 1;
  Observed kind = Observed::kGradient;
};

VerifyReport found(const Planted& planted) {
  Recipe recipe{.spec = planted.spec,
                .optimizer = {.name = "sgd", .lr = 0.1, .weight_decay = 0.0, .max_norm = 0.1},
                .global_batch = 8,
                .steps = 3};
  const Injection injection = parse_injection(planted.fault, planted.spec);
  VerifyReport report = report_of(recipe, planted.geometry, injection);
  EXPECT_TRUE(*injection.met) << planted.fault << " changed nothing";
  return report;
}

void expect_found(const Planted& planted) {
  SCOPED_TRACE(planted.fault + " on " + planted.geometry.name());
  const VerifyReport report = found(planted);
  ASSERT_FALSE(report.equal());
  EXPECT_EQ(name(report.first->row.kind), name(planted.kind));
  EXPECT_EQ(report.first->row.tensor, planted.tensor);
  EXPECT_EQ(report.first->row.step, planted.step);
  EXPECT_EQ(report.first->axes, planted.axes) << report.first->hint;
  EXPECT_THAT(report.first->hint, HasSubstr(planted.hint));
}

const std::string kUp = "model.layers.1.mlp.up_proj.weight";
const std::string kKey = "model.layers.0.self_attn.k_proj.weight";
const std::string kNorm = "model.layers.1.input_layernorm.weight";
const std::string kTable = "model.embed_tokens.weight";
const AxisSet kShards = Axis::kDpShard;
const AxisSet kData = kShards | Axis::kDpReplicate;
const AxisSet kTensor = Axis::kTp;

TEST(VerifyFaults, case_017_AFactorOfOnePercent) {
  const std::string fault = "scale=" + kUp + ":1.01";
  const std::string hint = "1.01 times the gradient";
  expect_found({fault, {.shards = 2, .zero_stage = 3}, kUp, {}, hint});
  expect_found({fault, {.tensor = 2, .sequence_parallel = true}, kUp, {}, hint});
}

TEST(VerifyFaults, SumsOverDataRanks) {
  const std::string drop = "drop_reduce=" + kUp;
  const std::string twice = "double_reduce=" + kUp;
  expect_found({drop, {.shards = 2}, kUp, {kShards}, "a sum over dp_shard is missing"});
  expect_found({drop,
                {.replicas = 2, .shards = 2},
                kUp,
                {kData},
                "a sum over dp_replicate x dp_shard is missing"});
  expect_found({drop,
                {.shards = 2, .zero_stage = 2},
                kUp,
                {kShards},
                "no pattern; it vanishes with dp_shard = 1"});
  expect_found({twice,
                {.shards = 2, .zero_stage = 3},
                kUp,
                {kShards},
                "dp_shard times the gradient: summed twice over dp_shard"});
}

TEST(VerifyFaults, ShardsOfDataRanks) {
  const std::string vanishes = "it vanishes with dp_shard = 1";
  ModelSpec even = tensor_llama();
  even.vocab = 64;
  expect_found({"swap_shards=" + kTable,
                {.shards = 2, .zero_stage = 1},
                kTable,
                {kShards},
                "shards 0 and 1 of dp_shard are swapped",
                even});
  expect_found({"stale_gather=layers.1",
                {.shards = 2, .zero_stage = 3},
                kTable,
                {kShards},
                "from the output of layers.1 on; " + vanishes,
                tensor_llama(),
                2});
  expect_found({"norm_not_summed",
                {.shards = 2, .zero_stage = 1},
                "grad_norm",
                {kShards},
                vanishes,
                tensor_llama(),
                1,
                Observed::kGradNorm});
}

// Every rank divides by its own tokens: equal numbers of them make it a factor.
TEST(VerifyFaults, LossDivisor) {
  Recipe recipe{.spec = tensor_llama(), .global_batch = 8, .steps = 1};
  recipe.trained = [](std::int64_t) { return 5; };
  Question q = question(recipe, {.shards = 2});
  q.subject.hooks = parse_injection("loss_divisor=rank", recipe.spec).hooks;
  const VerifyReport report = verify(q);
  ASSERT_FALSE(report.equal());
  EXPECT_EQ(report.first->row.tensor, kTable);
  EXPECT_EQ(report.first->axes, std::vector{kShards});
  EXPECT_THAT(report.first->hint, HasSubstr("look at what the loss is divided by"));
}

TEST(VerifyFaults, case_013_case_014_SumsOverTensorRanks) {
  const Geometry sequence{.tensor = 2, .sequence_parallel = true};
  const std::string missing = "a sum over tp is missing";
  const std::string twice = "tp times the gradient: summed twice over tp";
  expect_found({"drop_reduce=" + kNorm, sequence, kNorm, {kTensor}, missing});
  expect_found({"double_reduce=" + kNorm, sequence, kNorm, {kTensor}, twice});
  expect_found({"scale=" + kNorm + ":0.5", sequence, kNorm, {kTensor}, "1/tp of the gradient"});
  // Two heads of keys on four ranks.
  expect_found({"drop_reduce=" + kKey, {.tensor = 4}, kKey, {kTensor}, missing});
  expect_found({"double_reduce=" + kKey,
                {.tensor = 4},
                kKey,
                {kTensor},
                "2 times the gradient: summed twice over its copies on tp"});
}

TEST(VerifyFaults, ShardsOfTensorRanks) {
  const Geometry two{.tensor = 2};
  const Geometry sequence{.tensor = 2, .sequence_parallel = true};
  const std::string vanishes = "it vanishes with tp = 1";
  const std::string swapped = "shards 0 and 1 of tp are swapped";
  expect_found({"swap_shards=" + kUp, two, kUp, {kTensor}, swapped});
  const std::string first_block = "from the output of layers.0 on; " + vanishes;
  expect_found({"missing_gather=tp:1", sequence, kTable, {kTensor}, first_block});
  expect_found({"shift_positions=tp", two, kTable, {kTensor}, first_block});
  expect_found({"norm_not_summed",
                two,
                "grad_norm",
                {kTensor},
                vanishes,
                tensor_llama(),
                1,
                Observed::kGradNorm});
}

// The ranks of tp drop different elements of what they all hold, and part from there.
TEST(VerifyFaults, DropoutByRank) {
  const ModelSpec spec = with_dropout(tensor_gpt2());
  const std::string table = parameters(spec).front().name;
  expect_found({"dropout_seed=tp",
                {.tensor = 2},
                table,
                {kTensor},
                "from the output of the embedding on",
                spec});
}

// Rounding does not hide what is an axis's.
TEST(VerifyFaults, InBFloat16) {
  for (const auto& [fault, hint] :
       {std::pair{"double_reduce=", "tp times the gradient: summed twice over tp"},
        {"drop_reduce=", "a sum over tp is missing"}}) {
    Recipe recipe{.spec = tensor_llama(), .dtype = Dtype::kBFloat16, .global_batch = 8, .steps = 1};
    const Geometry geometry{.tensor = 2, .sequence_parallel = true};
    Question q = question(recipe, geometry);
    recipe.dtype = Dtype::kFloat64;
    q.exact = side_of(recipe, opponent(geometry));
    q.subject.hooks = parse_injection(fault + kNorm, recipe.spec).hooks;
    const VerifyReport report = verify(q);
    ASSERT_FALSE(report.equal());
    EXPECT_EQ(report.first->row.tensor, kNorm);
    EXPECT_EQ(report.first->axes, std::vector{kTensor});
    EXPECT_THAT(report.first->hint, HasSubstr(hint));
  }
}

// Biases begin at zero: what is added once too often shows from the second step.
TEST(VerifyFaults, BiasAddedOnEveryRank) {
  const ModelSpec spec = tensor_gpt2();
  const auto all = parameters(spec);
  const auto bias = std::find_if(all.begin(), all.end(), [](const ParameterInfo& info) {
    return info.name.ends_with("0.attn.c_proj.bias");
  });
  ASSERT_NE(bias, all.end());
  expect_found({"repeat=" + bias->name + ":tp",
                {.tensor = 4, .sequence_parallel = true},
                all.front().name,
                {kTensor},
                "from the output of layers.0 on; it vanishes with tp = 1",
                spec,
                2});
}

TEST(VerifyFaults, TextsThatAreRefused) {
  const ModelSpec spec = tensor_llama();
  const auto refusal = [&](const std::string& text) {
    try {
      parse_injection(text, spec);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refusal("scal=x:2"), HasSubstr("no such fault; there are: scale=NAME:FACTOR"));
  EXPECT_THAT(refusal("scale=" + kUp), HasSubstr("give NAME:FACTOR"));
  EXPECT_THAT(refusal("scale=" + kUp + ":two"), HasSubstr("\"two\" is no number"));
  EXPECT_THAT(refusal("drop_reduce=model.layers.1.mlp.up.weight"),
              HasSubstr("did you mean " + kUp));
  EXPECT_THAT(refusal("dropout_seed=dp"), HasSubstr("there is no \"dp\""));
  EXPECT_THAT(refusal("norm_not_summed=3"), HasSubstr("\"3\" says nothing"));
  EXPECT_THAT(refusal("repeat=" + kUp + ":4"), HasSubstr("there is no \"4\""));
  EXPECT_THAT(refusal("drop_reduce"), HasSubstr("drop_reduce needs NAME"));
}

}  // namespace
}  // namespace quatrain
