// SPDX-License-Identifier: Apache-2.0
// Experts on ranks of their own against one rank, and faults planted in their routers, gradients
// and exchanges.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quatrain/verify/inject.h"
#include "tests/experts/parallel_grid.h"
#include "tests/verify/question.h"

namespace quatrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Recipe experts_recipe(ModelSpec spec) {
  Recipe recipe{.spec = std::move(spec),
                .optimizer = {.name = "sgd", .lr = 0.1, .weight_decay = 0.0, .max_norm = 0.0},
                .global_batch = 8,
                .steps = 2};
  recipe.router_z_loss = 0.01;
  return recipe;
}

// Two data ranks, each with half of the experts.
constexpr int kRanks = 2;
Geometry shared_experts() { return {.shards = kRanks, .zero_stage = 1, .ep = kRanks, .etp = 1}; }

FirstDifference found(const std::string& fault, const ModelSpec& spec) {
  const Recipe recipe = experts_recipe(spec);
  const Injection injection = parse_injection(fault, spec);
  Question q = question(recipe, shared_experts());
  q.subject.hooks = injection.hooks;
  q.without = [=](Axis axis) -> std::optional<Side> {
    if (axis != Axis::kEp) return std::nullopt;
    Geometry other = shared_experts();
    other.ep = 1;
    Side side = side_of(recipe, other);
    side.hooks = injection.hooks;
    return side;
  };
  const VerifyReport report = verify(q);
  EXPECT_TRUE(*injection.met) << fault << " changed nothing";
  EXPECT_FALSE(report.equal()) << fault;
  return report.first.value_or(FirstDifference{});
}

TEST(VerifyExperts, GeometriesEqualOneRank) {
  for (const Case& c : sample(expert_parallel_grid(2), 20)) {
    if (c.geometry.data_ranks() * c.geometry.accumulation > 16) continue;
    const VerifyReport report = verify(question(c.recipe, c.geometry));
    EXPECT_TRUE(report.equal()) << c.name() << ": " << report.first->hint;
    const bool routers = std::any_of(report.rows.begin(), report.rows.end(),
                                     [](const auto& row) { return row.kind == Observed::kRouter; });
    EXPECT_TRUE(routers) << c.name();
  }
}

TEST(VerifyExperts, BalanceLossTimesTheRanksOfExperts) {
  for (const ModelSpec& spec : many_experts()) {
    if (spec.experts->aux_loss_coef == 0.0) continue;
    const FirstDifference first = found("balance=2", spec);
    EXPECT_EQ(name(first.row.kind), "router");
    EXPECT_EQ(first.row.tensor, "balance loss");
    EXPECT_EQ(first.axes, std::vector<AxisSet>{Axis::kEp}) << first.hint;
    EXPECT_THAT(first.hint, HasSubstr("ep times the balance loss: summed twice over ep"));
  }
}

TEST(VerifyExperts, MeansOfExpertsOverAllDataRanks) {
  const ModelSpec spec = many_experts().front();
  const FirstDifference first = found("mean_experts", spec);
  EXPECT_THAT(first.row.tensor, HasSubstr("experts.0."));
  EXPECT_EQ(first.axes, std::vector<AxisSet>{Axis::kEp}) << first.hint;
  EXPECT_THAT(first.hint, HasSubstr("1/ep of the gradient"));
}

TEST(VerifyExperts, case_151_RoutersOfLocalExperts) {
  const FirstDifference first = found("local_router", many_experts().front());
  EXPECT_EQ(first.axes, std::vector<AxisSet>{Axis::kEp}) << first.hint;
  EXPECT_THAT(first.hint, AllOf(HasSubstr("the backward pass meets"), HasSubstr(".gate.weight"),
                                HasSubstr("it vanishes with ep = 1")));
}

TEST(VerifyExperts, WeightsInAnotherOrder) {
  const FirstDifference first = found("weight_order", many_experts().front());
  EXPECT_EQ(first.axes, std::vector<AxisSet>{Axis::kEp}) << first.hint;
  EXPECT_THAT(first.hint, AllOf(HasSubstr("the loss differs too"), HasSubstr("layers.0"),
                                HasSubstr("it vanishes with ep = 1")));
}

}  // namespace
}  // namespace quatrain
