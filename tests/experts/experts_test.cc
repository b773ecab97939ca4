// SPDX-License-Identifier: Apache-2.0
// Models with experts on many ranks against one rank in float64: losses, those of routers with
// them, norms, every gradient by name, weights, loads and selection biases.
#include <gtest/gtest.h>

#include "tests/experts/grid.h"

namespace quatrain {
namespace {

TEST(Experts, EqualOneRank) {
  for (const Case& c : sample(expert_grid(3), 60)) expect_one_rank(c);
}

// Rows gathered again, deferred weight halves, replicas of shards; widths that do not divide.
TEST(Experts, ChoicesOfThePlan) {
  for (ModelSpec spec : expert_models()) {
    spec.ffn = 49;
    spec.experts->ffn = 13;
    Recipe recipe = expert_recipe(with_dropout(spec), 2);
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective}) {
      recipe.recompute = recompute;
      expect_one_rank({recipe,
                       {.replicas = 2,
                        .shards = 2,
                        .zero_stage = 3,
                        .accumulation = 2,
                        .tensor = 2,
                        .sequence_parallel = true,
                        .gather_again = true}});
      expect_one_rank({recipe,
                       {.zero_stage = 0,
                        .accumulation = 4,
                        .schedule = "zb-h1",
                        .tensor = 4,
                        .sequence_parallel = true,
                        .gather_again = true,
                        .overlap_chunks = 3,
                        .pipeline = 2}});
    }
  }
}

TEST(Experts, FrozenParameters) {
  for (const ModelSpec& spec : expert_models()) {
    for (const char* pattern :
         {"*gate.weight", "*experts.1.*", "*norm*", "*self_attn.*", "*embed*"}) {
      Recipe recipe = expert_recipe(spec, 2);
      recipe.trainable = {pattern};
      for (const bool sequence : {false, true}) {
        expect_one_rank({recipe,
                         {.shards = 2,
                          .zero_stage = 3,
                          .accumulation = 2,
                          .tensor = 2,
                          .sequence_parallel = sequence,
                          .gather_again = sequence}});
      }
    }
  }
}

}  // namespace
}  // namespace quatrain
