// SPDX-License-Identifier: Apache-2.0
// Context parallelism on thread ranks equals one rank: losses, norms, every gradient by name,
// routers' numbers and weights after steps of SGD, in float64.
#include <gtest/gtest.h>

#include "tests/context/styles.h"

namespace quatrain {
namespace {

constexpr int kSteps = 3;

Recipe recipe_of(const ModelSpec& spec) {
  if (spec.experts) return expert_recipe(spec, kSteps);
  return {.spec = spec, .global_batch = 8, .steps = kSteps};
}

TEST(Context, EveryStyleAndFamilyEqualsOneRank) {
  int ran = 0;
  for (const ModelSpec& spec : context_families()) {
    for (const Style& style : context_styles()) {
      const Geometry geometry = with_style({}, style);
      if (!fits(spec, geometry)) continue;
      expect_one_rank({recipe_of(spec), geometry});
      ++ran;
    }
  }
  EXPECT_GE(ran, 25);
}

TEST(Context, case_004_TheLossIsTheMeanOverTokensOnEveryCut) {
  const Recipe recipe = recipe_of(tensor_llama());
  for (const auto& [shards, context] : {std::pair{8, 1}, {4, 2}, {2, 4}, {1, 8}}) {
    expect_one_rank({recipe, {.shards = shards, .context = context}});
  }
}

// The first of two ranks has every trained token, in contiguous order.
TEST(Context, case_005_ARankWithoutTrainedTokens) {
  Recipe recipe = recipe_of(tensor_llama());
  recipe.trained = [](std::int64_t) { return std::int64_t{4}; };
  expect_one_rank({recipe, {.context = 2, .zigzag = false}});
  expect_one_rank({recipe, {.context = 2, .context_style = "all_gather", .zigzag = false}});
}

TEST(Context, case_008_PackedDocuments) {
  Recipe recipe = recipe_of(tensor_llama());
  recipe.document_tokens = 4;
  for (const Style& style : context_styles()) {
    const Geometry geometry = with_style({}, style);
    if (fits(recipe.spec, geometry)) expect_one_rank({recipe, geometry});
  }
}

TEST(Context, case_091_ZeroCutsOverContextToo) {
  for (const int zero : {1, 2, 3}) {
    expect_one_rank({recipe_of(tensor_gpt2()), {.zero_stage = zero, .context = 4}});
    expect_one_rank({recipe_of(tensor_llama()),
                     {.replicas = 2, .shards = 2, .zero_stage = zero, .context = 2}});
  }
}

TEST(Context, ComposesWithTensorsPipelinesAndRecomputation) {
  for (const RunSchedule& schedule :
       std::vector<RunSchedule>{{"1f1b"}, {"interleaved-1f1b", 2}, {"zb-v", 2}}) {
    for (const char* style : {"ring", "all_gather", "ulysses"}) {
      for (const Recompute recompute :
           {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        Recipe recipe = recipe_of(with_layers(tensor_gpt2(), 2 * schedule.chunks));
        recipe.recompute = recompute;
        expect_one_rank({recipe,
                         {.shards = 1,
                          .zero_stage = 3,
                          .accumulation = 4,
                          .schedule = schedule.name,
                          .tensor = 2,
                          .sequence_parallel = true,
                          .pipeline = 2,
                          .chunks = schedule.chunks,
                          .context = 2,
                          .context_style = style}});
      }
    }
  }
}

TEST(Context, ExpertsFoldOverContext) {
  for (const ModelSpec& spec : expert_models()) {
    for (const auto& [ep, etp] : {std::pair{2, 1}, {4, 1}, {2, 2}}) {
      expect_one_rank({expert_recipe(spec, kSteps),
                       {.zero_stage = 3, .tensor = 2, .ep = ep, .etp = etp, .context = 2}});
    }
  }
}

}  // namespace
}  // namespace quatrain
