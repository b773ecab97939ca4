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

using testing::HasSubstr;

struct Planted {
  std::string fault;
  ModelSpec spec;
  Geometry geometry;
  // What is to be found.
  Observed kind;
  std::string tensor;
  int step;
  std::vector<AxisSet> axes;
  std::string hint;
};

VerifyReport found(const Planted& planted) {
  Recipe recipe{.spec = planted.spec,
                .optimizer = {.name = "sgd", .lr = 0.1, .weight_decay = 0.0, .max_norm = 0.1},
                .global_batch = 8,
                .steps = 3};
  const Injection injection = parse_injection(planted.fault, planted.spec);
  Question q = question(recipe, planted.geometry);
  q.subject.hooks = injection.hooks;
  q.without = [=](Axis axis) {
    std::optional<Side> side;
    if (const auto other = without(planted.geometry, axis)) {
      side = side_of(recipe, *other);
      side->hooks = injection.hooks;
    }
    return side;
  };
  VerifyReport report = verify(q);
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
const std::string kTable = "model.embed_tokens.weight";
const std::string kNorm = "model.layers.1.input_layernorm.weight";
constexpr Observed kGradient = Observed::kGradient;
const AxisSet kShards = Axis::kDpShard;
const AxisSet kTensor = Axis::kTp;

TEST(VerifyFaults, case_017_AFactorOfOnePercent) {
  for (const Geometry& geometry :
       {Geometry{.shards = 2, .zero_stage = 3}, Geometry{.tensor = 2, .sequence_parallel = true}}) {
    expect_found({"scale=" + kUp + ":1.01",
                  tensor_llama(),
                  geometry,
                  kGradient,
                  kUp,
                  1,
                  {},
                  "1.01 times the gradient"});
  }
}

TEST(VerifyFaults, DataParallel) {
  const ModelSpec llama = tensor_llama();
  ModelSpec even = llama;
  even.vocab = 64;
  const std::vector<Planted> all = {
      {"drop_reduce=" + kUp,
       llama,
       {.shards = 2},
       kGradient,
       kUp,
       1,
       {kShards},
       "a sum over dp_shard is missing"},
      {"drop_reduce=" + kUp,
       llama,
       {.replicas = 2, .shards = 2},
       kGradient,
       kUp,
       1,
       {kShards | Axis::kDpReplicate},
       "a sum over dp_replicate x dp_shard is missing"},
      {"drop_reduce=" + kUp,
       llama,
       {.shards = 2, .zero_stage = 2},
       kGradient,
       kUp,
       1,
       {kShards},
       "it vanishes with dp_shard = 1"},
      {"double_reduce=" + kUp,
       llama,
       {.shards = 2, .zero_stage = 3},
       kGradient,
       kUp,
       1,
       {kShards},
       "dp_shard times the gradient: summed twice over dp_shard"},
      {"swap_shards=" + kTable,
       even,
       {.shards = 2, .zero_stage = 1},
       kGradient,
       kTable,
       1,
       {kShards},
       "shards 0 and 1 of dp_shard are swapped"},
      {"norm_not_summed",
       llama,
       {.shards = 2, .zero_stage = 1},
       Observed::kGradNorm,
       "grad_norm",
       1,
       {kShards},
       "it vanishes with dp_shard = 1"},
      {"stale_gather=layers.1",
       llama,
       {.shards = 2, .zero_stage = 3},
       kGradient,
       kTable,
       2,
       {kShards},
       "the forward pass is wrong already; it vanishes with dp_shard = 1"},
  };
  for (const Planted& planted : all) expect_found(planted);
}

// Every rank divides by its own tokens: equal numbers of them make it a factor.
TEST(VerifyFaults, LossDivisor) {
  const Planted planted{"loss_divisor=rank",
                        tensor_llama(),
                        {.shards = 2},
                        kGradient,
                        kTable,
                        1,
                        {kShards},
                        "look at what the loss is divided by"};
  Recipe recipe{.spec = planted.spec, .global_batch = 8, .steps = 1};
  recipe.trained = [](std::int64_t) { return 5; };
  Question q = question(recipe, planted.geometry);
  q.subject.hooks = parse_injection(planted.fault, planted.spec).hooks;
  const VerifyReport report = verify(q);
  ASSERT_FALSE(report.equal());
  EXPECT_EQ(report.first->row.tensor, planted.tensor);
  EXPECT_EQ(report.first->axes, planted.axes);
  EXPECT_THAT(report.first->hint, HasSubstr(planted.hint));
}

TEST(VerifyFaults, case_013_case_014_TensorParallel) {
  const ModelSpec llama = tensor_llama();
  const ModelSpec dropout = with_dropout(tensor_gpt2());
  const Geometry two{.tensor = 2};
  const Geometry sequence{.tensor = 2, .sequence_parallel = true};
  const std::string k = "model.layers.0.self_attn.k_proj.weight";
  const std::vector<Planted> all = {
      {"drop_reduce=" + kNorm,
       llama,
       sequence,
       kGradient,
       kNorm,
       1,
       {kTensor},
       "a sum over tp is missing"},
      {"double_reduce=" + kNorm,
       llama,
       sequence,
       kGradient,
       kNorm,
       1,
       {kTensor},
       "tp times the gradient: summed twice over tp"},
      {"drop_reduce=" + k,
       llama,
       {.tensor = 4},
       kGradient,
       k,
       1,
       {kTensor},
       "a sum over tp is missing"},
      {"swap_shards=" + kUp,
       llama,
       two,
       kGradient,
       kUp,
       1,
       {kTensor},
       "shards 0 and 1 of tp are swapped"},
      {"missing_gather=tp:1",
       llama,
       sequence,
       kGradient,
       kTable,
       1,
       {kTensor},
       "it vanishes with tp = 1"},
      {"shift_positions=tp",
       llama,
       two,
       kGradient,
       kTable,
       1,
       {kTensor},
       "it vanishes with tp = 1"},
      {"dropout_seed=tp",
       dropout,
       two,
       kGradient,
       parameters(dropout).front().name,
       1,
       {kTensor},
       "tp"},
      {"norm_not_summed",
       llama,
       two,
       Observed::kGradNorm,
       "grad_norm",
       1,
       {kTensor},
       "it vanishes with tp = 1"},
  };
  for (const Planted& planted : all) expect_found(planted);
}

// Biases begin at zero: what is added once too often shows from the second step.
TEST(VerifyFaults, BiasAddedOnEveryRank) {
  const ModelSpec spec = tensor_gpt2();
  const auto all = parameters(spec);
  const auto bias = std::find_if(all.begin(), all.end(), [](const ParameterInfo& info) {
    return info.name.ends_with("0.attn.c_proj.bias");
  });
  ASSERT_NE(bias, all.end());
  expect_found({"repeat=" + bias->name + ":2",
                spec,
                {.tensor = 2},
                kGradient,
                all.front().name,
                2,
                {},
                "the forward pass is wrong already"});
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
  EXPECT_THAT(refusal("drop_reduce"), HasSubstr("drop_reduce needs NAME"));
}

}  // namespace
}  // namespace quatrain
