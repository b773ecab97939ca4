// SPDX-License-Identifier: Apache-2.0
// Tensor and sequence parallelism against one rank in float64: losses, norms, every gradient by
// name and the weights after some steps, with SGD without clipping and with AdamW and clipping.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/tensor/grid.h"

namespace quatrain {
namespace {

constexpr double kTight = 1e-12;

bool set_trainable_matches(const ModelSpec& spec, const std::string& pattern) {
  std::vector<ParameterInfo> list = parameters(spec);
  return set_trainable(list, {pattern}).empty();
}

TEST(Tensor, EqualsOneRank) {
  for (const Case& c : sample(full_grid(), 48)) {
    SCOPED_TRACE(c.name());
    const Difference worst = difference(run_on_threads(c.recipe, c.geometry), one_rank(c.recipe));
    EXPECT_LE(worst.max_rel, kTight) << worst.where;
  }
}

void expect_one_rank(const Recipe& recipe, const Geometry& geometry) {
  const Case c{recipe, geometry};
  SCOPED_TRACE(c.name());
  const Difference worst = difference(run_on_threads(recipe, geometry), one_rank(recipe));
  EXPECT_LE(worst.max_rel, kTight) << worst.where;
}

// Neither the vocabulary nor the feed-forward width is a multiple of the degree.
TEST(Tensor, UnevenVocabularyAndWidth) {
  for (const int degree : {2, 3, 4}) {
    for (ModelSpec spec : {tensor_gpt2(), tensor_llama()}) {
      spec.vocab = 251;
      spec.ffn = 129;
      if (degree == 3) {
        spec.heads = 6;
        spec.kv_heads = spec.family == Family::kGpt2 ? 6 : 3;
      }
      for (const bool sequence : {false, true}) {
        expect_one_rank({.spec = spec, .global_batch = 4, .steps = 2},
                        {.tensor = degree, .sequence_parallel = sequence});
      }
    }
  }
}

// Rows are cut, not sequences: fewer rows than ranks, and any number of them.
TEST(Tensor, case_098_AnySequenceLength) {
  for (const std::int64_t seq : {1, 2, 3, 5, 7, 33}) {
    Recipe recipe{.spec = tensor_gpt2(), .global_batch = 2, .seq = seq, .steps = 2};
    recipe.spec.max_positions = 64;
    recipe.trained = [seq](std::int64_t) { return seq; };
    for (const int degree : {2, 4, 8}) {
      for (const int accumulation : {1, 2}) {
        expect_one_rank(
            recipe, {.accumulation = accumulation, .tensor = degree, .sequence_parallel = true});
      }
    }
  }
}

// What is kept, gathered again or cut in chunks changes no number; under ZeRO 2 and 3 copies are
// summed once a micro-batch.
TEST(Tensor, ChoicesOfThePlan) {
  for (const ModelSpec& spec : tensor_models()) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      const Recipe recipe{.spec = with_dropout(spec),
                          .recompute = recompute,
                          .global_batch = 8,
                          .z_loss = 1e-3,
                          .steps = 2};
      expect_one_rank(recipe, {.shards = 2,
                               .zero_stage = 2,
                               .accumulation = 2,
                               .tensor = 4,
                               .sequence_parallel = true,
                               .gather_again = true});
      expect_one_rank(recipe, {.replicas = 2,
                               .shards = 2,
                               .zero_stage = 3,
                               .accumulation = 2,
                               .tensor = 2,
                               .sequence_parallel = true,
                               .overlap_chunks = 3});
      expect_one_rank(recipe, {.shards = 3, .zero_stage = 1, .tensor = 2, .overlap_chunks = 2});
    }
  }
}

TEST(Tensor, FrozenParameters) {
  for (const ModelSpec& spec : tensor_models()) {
    for (const char* pattern : {"*norm*", "*bias", "*.mlp.*", "*attn*", "*ln_*", "*embed*"}) {
      Recipe recipe{.spec = spec, .trainable = {pattern}, .global_batch = 4, .steps = 2};
      if (!set_trainable_matches(spec, pattern)) continue;
      for (const bool sequence : {false, true}) {
        expect_one_rank(recipe, {.shards = 2,
                                 .zero_stage = 3,
                                 .tensor = 4,
                                 .sequence_parallel = sequence,
                                 .gather_again = sequence});
      }
    }
  }
}

}  // namespace
}  // namespace quatrain
