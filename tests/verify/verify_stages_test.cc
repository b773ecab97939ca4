// SPDX-License-Identifier: Apache-2.0
// Pipelines: geometries that compute what one rank does, and faults of a stage, each found and
// named with the stage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "quatrain/verify/inject.h"
#include "quatrain/verify/planted_fault.h"
#include "tests/pipeline/grid.h"
#include "tests/verify/question.h"

namespace quatrain {
namespace {

using ::testing::HasSubstr;

const AxisSet kPipe = Axis::kPp;
const std::string kTiedTable = "transformer.wte.weight";

// Two micro-batches more than stages; four blocks.
Geometry staged(const std::string& schedule, int ranks = 2, int chunks = 1) {
  return {.accumulation = 6, .schedule = schedule, .pipeline = ranks, .chunks = chunks};
}
Recipe stages_recipe(const ModelSpec& spec = tensor_gpt2()) {
  return {.spec = with_layers(spec, 4),
          .optimizer = {.name = "adamw", .lr = 1e-3, .weight_decay = 0.1, .max_norm = 0.1},
          .global_batch = 12,
          .steps = 2};
}

VerifyReport met_report(const Recipe& recipe, const Geometry& geometry,
                        const Injection& injection) {
  VerifyReport report = report_of(recipe, geometry, injection);
  EXPECT_TRUE(!injection.met || *injection.met) << "nothing was changed";
  return report;
}

struct PlantedInStage {
  std::string fault;
  Geometry geometry;
  std::string tensor;
  std::string hint;
  Observed kind = Observed::kGradient;
  std::vector<AxisSet> axes = {kPipe};
};
void expect_found(const PlantedInStage& expected) {
  SCOPED_TRACE(expected.fault + " on " + expected.geometry.name());
  const Recipe recipe = stages_recipe();
  const Injection injection = parse_injection(expected.fault, recipe.spec);
  const VerifyReport report = met_report(recipe, expected.geometry, injection);
  ASSERT_FALSE(report.equal());
  EXPECT_EQ(name(report.first->row.kind), name(expected.kind));
  EXPECT_EQ(report.first->row.tensor, expected.tensor);
  EXPECT_EQ(report.first->row.step, 1);
  EXPECT_EQ(report.first->axes, expected.axes);
  EXPECT_THAT(report.first->hint, HasSubstr(expected.hint));
}

TEST(VerifyStages, GeometriesThatEqualOneRank) {
  Geometry sharded = staged("zb-h1");
  sharded.shards = 2;
  sharded.zero_stage = 1;
  sharded.accumulation = 3;
  Geometry tensor = staged("1f1b");
  tensor.tensor = 2;
  tensor.sequence_parallel = true;
  Geometry uneven = staged("zb-h2");
  uneven.layers = {3, 1};
  for (const Geometry& geometry : {staged("1f1b", 4), staged("interleaved-1f1b", 2, 2),
                                   staged("zb-v", 2, 2), sharded, tensor, uneven}) {
    for (const ModelSpec& spec : {tensor_gpt2(), tensor_llama()}) {
      const VerifyReport report = met_report(stages_recipe(spec), geometry, {});
      EXPECT_TRUE(report.equal()) << spec.name << ", " << geometry.name();
      for (const VerifyRow& row : report.rows) EXPECT_LE(row.max_rel, 1e-12) << row.tensor;
    }
  }
}

TEST(VerifyStages, WeightHalves) {
  const std::string second = "transformer.h.2.ln_1.weight";
  for (const std::string fault : {"missing_weight=1:5", "wrong_weight=1:0", "wrong_weight=1:3"}) {
    // Its head adds to the table, which comes first.
    expect_found({fault, staged("zb-h1"), kTiedTable, "only tensors of stage 1 differ"});
  }
  expect_found({"wrong_weight=0:2", staged("1f1b"), kTiedTable, "only tensors of stage 0 differ"});
  for (const std::string schedule : {"zb-v", "interleaved-1f1b"}) {
    expect_found(
        {"missing_weight=2:0", staged(schedule, 2, 2), second, "only tensors of stage 2 differ"});
  }
}

TEST(VerifyStages, case_019_OneCopyOfTheTable) {
  const std::string hint = "only the copy at pp 1 is wrong";
  for (const std::string schedule : {"1f1b", "zb-h1"}) {
    expect_found({"stale_tied", staged(schedule), kTiedTable, hint});
  }
  expect_found({"stale_tied", staged("interleaved-1f1b", 2, 2), kTiedTable, hint});
}

TEST(VerifyStages, SumOverBothCopies) {
  const std::string hint = "add up to the right one: a sum over pp is missing";
  expect_found({"drop_reduce=" + kTiedTable, staged("zb-h1"), kTiedTable, hint});
  expect_found({"drop_reduce=" + kTiedTable, staged("interleaved-1f1b", 2, 2), kTiedTable, hint});
}

TEST(VerifyStages, case_001_LossDividedTwice) {
  expect_found({"loss_twice", staged("zb-h1"), kTiedTable,
                "0.166667 times the gradient; every gradient has this factor: look at what the "
                "loss is divided by",
                Observed::kGradient, std::vector<AxisSet>{}});
}

TEST(VerifyStages, case_130_NormOfOneStage) {
  expect_found({"norm_not_summed", staged("1f1b"), "grad_norm",
                "each stage has its own: it is the norm of stage 0", Observed::kGradNorm});
  expect_found({"norm_not_summed", staged("zb-v", 2, 2), "grad_norm", "the norm of stages 0, 3",
                Observed::kGradNorm});
}

// Other faults, where stages have other parameters.
TEST(VerifyStages, FaultsOfOneStagesTensors) {
  const std::string weight = "transformer.h.3.mlp.c_fc.weight";
  expect_found({"scale=" + weight + ":1.01", staged("zb-h1"), weight, "1.01 times the gradient",
                Observed::kGradient, std::vector<AxisSet>{}});
  Geometry replicas = staged("zb-h1");
  replicas.replicas = 2;
  replicas.accumulation = 3;
  expect_found({"drop_reduce=" + weight,
                replicas,
                weight,
                "a sum over dp_replicate is missing",
                Observed::kGradient,
                {Axis::kDpReplicate}});
}

// Halves what one stage sends to the next.
class WeakMessage final : public PlantedFault {
 public:
  using PlantedFault::PlantedFault;
  Work run(const Call& call, Communicator& group, const Forward& forward) override {
    if (group.name() == "pp:0>1:F" && call.operation == Operation::kSend) call.in.mul_(0.5);
    return forward(call);
  }
};

TEST(VerifyStages, ForwardThatGoesWrongBetweenStages) {
  Injection injection;
  injection.hooks = [](const Mesh&) { return std::make_unique<WeakMessage>(FaultArguments{}); };
  const VerifyReport report = met_report(stages_recipe(), staged("1f1b"), injection);
  ASSERT_FALSE(report.equal());
  EXPECT_EQ(report.first->axes, std::vector{kPipe});
  EXPECT_THAT(report.first->hint,
              HasSubstr("from the output of layers.2 on, where stage 1 begins"));
}

TEST(VerifyStages, TextsThatAreRefused) {
  const ModelSpec spec = tensor_gpt2();
  EXPECT_THROW(parse_injection("missing_weight=1", spec), ConfigError);
  EXPECT_THROW(parse_injection("missing_weight=one:1", spec), ConfigError);
  EXPECT_THROW(parse_injection("wrong_weight=1:-1", spec), ConfigError);
  EXPECT_THROW(parse_injection("stale_tied=1", spec), ConfigError);
}

}  // namespace
}  // namespace quatrain
