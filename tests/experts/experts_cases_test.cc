// SPDX-License-Identifier: Apache-2.0
// Known mistakes with experts, each by its number.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/experts/grid.h"

namespace quatrain {
namespace {

constexpr double kTight = 1e-12;

ModelSpec deepseek() { return expert_models()[2]; }

double largest(const NamedTensors& tensors, const std::string& part) {
  double result = 0.0;
  for (const auto& [name, tensor] : tensors) {
    if (name.find(part) == std::string::npos) continue;
    result = std::max(result, tensor.abs().max().item<double>());
  }
  return result;
}

// Balance alone, as far as routers go: the same gradient however the batch is cut.
TEST(ExpertCases, case_031_case_032_balance_does_not_see_the_cut_of_the_batch) {
  for (ModelSpec spec : expert_models()) {
    spec.experts->aux_loss_coef = 1e4;
    Recipe recipe = expert_recipe(spec, 1);
    const RunResult want = one_rank(recipe);
    EXPECT_GT(largest(want.grads[0], "gate.weight"), 1.0);
    for (const Geometry& geometry :
         {Geometry{.accumulation = 2},
          {.accumulation = 8},
          {.shards = 2, .accumulation = 2},
          {.shards = 4},
          {.tensor = 2},
          {.tensor = 4, .sequence_parallel = true},
          {.shards = 2, .accumulation = 4, .tensor = 2, .sequence_parallel = true}}) {
      SCOPED_TRACE(geometry.name());
      const Difference worst = difference(run_on_threads(recipe, geometry), want);
      EXPECT_LE(worst.max_rel, kTight) << worst.where;
    }
  }
}

// By micro-batch the loss is another at another micro-batch size, and the same at the same one.
TEST(ExpertCases, balance_by_micro_batch_sees_its_size_alone) {
  for (ModelSpec spec : expert_models()) {
    spec.experts->aux_loss_coef = 10.0;
    Recipe recipe = expert_recipe(spec, 3);
    recipe.router = {.balance = kernels::BalanceOver::kMicrobatch, .jitter = 0.2};
    const RunResult want = run_on_threads(recipe, {.accumulation = 4});
    for (const Geometry& geometry :
         {Geometry{.shards = 4},
          {.shards = 2, .zero_stage = 3, .accumulation = 2, .tensor = 2, .sequence_parallel = true},
          {.shards = 4, .zero_stage = 1, .ep = 4, .etp = 1},
          {.accumulation = 4,
          .schedule = "zb-h1",
          .tensor = 2,
          .pipeline = 2,
          .ep = 2,
          .etp = 1}}) {
      const Difference worst = difference(run_on_threads(recipe, geometry), want);
      EXPECT_LE(worst.max_rel, kTight) << geometry.name() << ": " << worst.where;
    }
    EXPECT_GT(difference(one_rank(recipe), want).max_rel, 1e-6);
  }
}

// By global batch the first step has even loads and no gradient, later ones those of the step
// before; on every geometry, at every micro-batch size.
TEST(ExpertCases, balance_by_global_batch_counts_the_step_before) {
  for (ModelSpec spec : expert_models()) {
    Recipe recipe = expert_recipe(spec, 3);
    recipe.spec.experts->aux_loss_coef = 0.0;
    const RunResult none = one_rank(recipe);
    recipe.spec.experts->aux_loss_coef = 10.0;
    recipe.router.balance = kernels::BalanceOver::kGlobalBatch;
    const RunResult want = one_rank(recipe);
    const auto first = compare(want.grads[0], none.grads[0]).front();
    EXPECT_LE(first.max_rel, kTight) << first.name;
    EXPECT_GT(compare(want.grads[1], none.grads[1]).front().max_rel, 1e-3);
    for (const Geometry& geometry :
         {Geometry{.accumulation = 8},
          {.shards = 4, .zero_stage = 2, .ep = 2, .etp = 2},
          {.shards = 2, .accumulation = 2, .tensor = 2, .sequence_parallel = true},
          {.accumulation = 4, .schedule = "zb-h1", .pipeline = 2}}) {
      const Difference worst = difference(run_on_threads(recipe, geometry), want);
      EXPECT_LE(worst.max_rel, kTight) << geometry.name() << ": " << worst.where;
    }
  }
}

// Other draws at another step, none in evaluation, the same behind recomputation.
TEST(ExpertCases, jitter_is_drawn_again_by_recomputation) {
  for (const ModelSpec& spec : expert_models()) {
    Recipe recipe = expert_recipe(spec, 2);
    const RunResult dry = one_rank(recipe);
    recipe.router.jitter = 0.3;
    const RunResult want = one_rank(recipe);
    EXPECT_GT(difference(dry, want).max_rel, 1e-6);
    for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
      recipe.recompute = recompute;
      EXPECT_TRUE(same_bits(one_rank(recipe), want));
    }
  }
}

// The first stage has no router: all stages send the same numbers, and the average is right.
TEST(ExpertCases, case_074_stages_without_experts_report_with_the_others) {
  ModelSpec spec = with_layers(deepseek(), 4);
  spec.experts->first_dense = 2;
  const Recipe recipe = expert_recipe(spec, 3);
  const RunResult want = one_rank(recipe);
  ASSERT_EQ(want.routers[0].loads.size(), 4U);
  EXPECT_EQ(want.routers[0].loads[1], std::vector<double>(4, 0.0));
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    const Geometry geometry{.accumulation = 4, .schedule = schedule, .pipeline = 2};
    const Difference worst = difference(run_on_threads(recipe, geometry), want);
    EXPECT_LE(worst.max_rel, kTight) << worst.where;
  }
}

// Of the whole global batch; the mean stays; a rank's share of it decides nothing.
TEST(ExpertCases, case_155_biases_move_with_the_loads_of_the_global_batch) {
  Recipe recipe = expert_recipe(deepseek(), 10);
  recipe.router_bias_rate = 0.01;
  const std::string name = "model.layers.1.mlp.gate.e_score_correction_bias";
  const RunResult want = one_rank(recipe);
  const at::Tensor bias = want.weights.back().at(name);
  EXPECT_GT(bias.abs().max().item<double>(), 0.005);
  EXPECT_NEAR(bias.mean().item<double>(), 0.0, 1e-15);
  for (const int shards : {1, 2, 4}) {
    for (const int accumulation : {1, 2}) {
      for (const int zero : {0, 3}) {
        const Geometry geometry{.shards = shards, .zero_stage = zero, .accumulation = accumulation};
        const RunResult got = run_on_threads(recipe, geometry);
        EXPECT_TRUE(got.weights.back().at(name).equal(bias)) << geometry.name();
      }
    }
  }
  recipe.router_bias_rate = 0.0;
  EXPECT_EQ(one_rank(recipe).weights.back().at(name).abs().max().item<double>(), 0.0);
}

// bf16 has too few bits for small steps: what rounding cuts off is not lost.
TEST(ExpertCases, BiasesOfBf16ModelsMoveInSmallSteps) {
  Recipe recipe = expert_recipe(deepseek(), 9);
  recipe.dtype = Dtype::kBFloat16;
  recipe.router_bias_rate = 1e-3;
  const std::string name = "model.layers.1.mlp.gate.e_score_correction_bias";
  const RunResult got = one_rank(recipe);
  at::Tensor want;
  for (const RouterReport& report : got.routers) {
    const std::vector<double>& loads = report.loads[1];
    const double mean = (loads[0] + loads[1] + loads[2] + loads[3]) / 4.0;
    at::Tensor step = at::zeros({4}, at::kDouble);
    for (std::int64_t e = 0; e < 4; ++e) {
      const double lack = mean - loads[static_cast<std::size_t>(e)];
      step[e] = lack > 0.0 ? 1e-3 : (lack < 0.0 ? -1e-3 : 0.0);
    }
    step = step.sub(step.mean());
    want = want.defined() ? want.add(step) : step;
  }
  const at::Tensor bias = got.weights.back().at(name).to(at::kDouble);
  ASSERT_GE(want.abs().max().item<double>(), 1e-3);
  EXPECT_LE(bias.sub(want).abs().max().item<double>(), 0.004 * want.abs().max().item<double>());
}

// A report says what is part of the objective: a step's loss falls as the sum of all does.
TEST(ExpertCases, ReportsNameLoadsAndLosses) {
  const Recipe recipe = expert_recipe(expert_models()[0], 1);
  const RouterReport report = one_rank(recipe).routers[0];
  double choices = 0.0;
  for (const std::vector<double>& layer : report.loads) {
    for (const double load : layer) choices += load;
  }
  EXPECT_EQ(choices, 2.0 * 2.0 * static_cast<double>(recipe.global_batch * recipe.seq));
  EXPECT_GE(report.worst_load(), 1.0);
  EXPECT_GT(report.entropy, 0.0);
  EXPECT_LE(report.entropy, std::log(4.0));
  EXPECT_GT(report.balance, 0.0);
  EXPECT_GT(report.z, 0.0);
}

}  // namespace
}  // namespace quatrain
