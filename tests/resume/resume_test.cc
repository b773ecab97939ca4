// SPDX-License-Identifier: Apache-2.0
// Checkpoints across geometries: a covering part of the pairs, each geometry saved and taken up.
#include <gtest/gtest.h>

#include "tests/experts/parallel_grid.h"
#include "tests/resume/pairs.h"

namespace quatrain {
namespace {

Recipe recipe_of(const ModelSpec& spec) {
  return {.spec = with_layers(spec, 4),
          .optimizer = {.name = "adamw", .lr = 1e-3, .weight_decay = 0.1, .max_norm = 0.5},
          .global_batch = 16};
}

// Each geometry to those that lie these many places on in the list.
void expect_no_fault(const Recipe& recipe, const std::vector<std::size_t>& distances,
                     std::size_t every = 1,
                     const std::vector<Geometry>& all = resume_geometries()) {
  ResumePairs pairs(recipe);
  for (std::size_t i = 0; i < all.size(); i += every) {
    pairs.save(all[i]);
    for (const std::size_t distance : distances) {
      const Geometry& to = all[(i + distance) % all.size()];
      EXPECT_EQ(pairs.fault(all[i], to), "") << all[i].name() << " -> " << to.name();
    }
  }
}

TEST(Resume, PairsOfGeometriesWithATiedTable) {
  expect_no_fault(recipe_of(tensor_gpt2()), {5, 16});
}

TEST(Resume, PairsOfGeometriesWithAHead) { expect_no_fault(recipe_of(tensor_llama()), {0, 11}, 3); }

// Weights, and masters beside them (case 038: both as they were).
TEST(Resume, case_038_MastersAndWeightsOfAbfloat16Model) {
  Recipe recipe = recipe_of(tensor_gpt2());
  recipe.dtype = Dtype::kBFloat16;
  expect_no_fault(recipe, {7}, 2);
}

TEST(Resume, FrozenParametersHaveNoState) {
  Recipe recipe = recipe_of(tensor_llama());
  recipe.trainable = {"*.mlp.*", "lm_head.weight"};
  expect_no_fault(recipe, {13}, 4);
}

// Experts are named by the model, whatever rank had them: moments and biases with them.
TEST(Resume, case_046_ExpertsOfAnyRank) {
  for (const ModelSpec& spec : many_experts()) {
    Recipe recipe = recipe_of(spec);
    recipe.router_bias_rate = spec.experts->selection_bias ? 0.05 : 0.0;
    expect_no_fault(recipe, {3}, 1, expert_resume_geometries());
  }
}

// A step's balance loss counts the choices of the one before, which the checkpoint has seen.
TEST(Resume, LoadsOfTheStepBefore) {
  for (const ModelSpec& spec : many_experts()) {
    Recipe recipe = recipe_of(spec);
    recipe.router = {.balance = kernels::BalanceOver::kGlobalBatch, .jitter = 0.1};
    expect_no_fault(recipe, {3}, 2, expert_resume_geometries());
  }
}

TEST(Resume, MomentumOfSgd) {
  Recipe recipe = recipe_of(tensor_qwen3());
  recipe.optimizer = {.name = "sgd", .lr = 0.1, .weight_decay = 0.01, .momentum = 0.9};
  expect_no_fault(recipe, {9}, 4);
}

}  // namespace
}  // namespace quatrain
