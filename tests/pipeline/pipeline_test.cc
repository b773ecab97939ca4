// SPDX-License-Identifier: Apache-2.0
// Pipelines against one rank in float64: losses, norms, every gradient by name and the weights
// after some steps, with SGD without clipping.
#include <gtest/gtest.h>

#include <map>

#include "tests/pipeline/grid.h"

namespace quatrain {
namespace {

constexpr double kTight = 1e-12;

// Of one rank, by recipe: many geometries are compared with it.
const RunResult& one_rank_of(const Recipe& recipe, int accumulation) {
  static std::map<std::string, RunResult> known;
  const std::string key = recipe.spec.name + std::to_string(recipe.spec.layers) + "/" +
                          recipe.optimizer.name + std::string(name(recipe.recompute)) + "/" +
                          std::to_string(recipe.global_batch) + "/" + std::to_string(accumulation);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known.emplace(key, run_on_threads(recipe, {.accumulation = accumulation})).first->second;
}

void expect_one_rank(const Recipe& recipe, const Geometry& geometry) {
  SCOPED_TRACE(recipe.spec.name + ", " + geometry.name());
  const Difference worst =
      difference(run_on_threads(recipe, geometry), one_rank_of(recipe, geometry.accumulation));
  EXPECT_LE(worst.max_rel, kTight) << worst.where;
}

TEST(Pipeline, EverySchedule) {
  for (const ModelSpec& spec : {tiny_gpt2(), tiny_llama()}) {
    for (const int ranks : {2, 4}) {
      for (const RunSchedule& schedule : run_schedules()) {
        const int stages = ranks * schedule.chunks;
        const int m = std::max(4, ranks * schedule.times_ranks);
        Recipe recipe{.spec = with_layers(spec, stages), .global_batch = m, .steps = 3};
        expect_one_rank(recipe, {.accumulation = m,
                                 .schedule = schedule.name,
                                 .pipeline = ranks,
                                 .chunks = schedule.chunks});
      }
    }
  }
}

}  // namespace
}  // namespace quatrain
