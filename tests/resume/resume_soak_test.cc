// SPDX-License-Identifier: Apache-2.0
// Every ordered pair of geometries.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/experts/parallel_grid.h"
#include "tests/resume/pairs.h"

namespace quatrain {
namespace {

void expect_all_pairs(const ModelSpec& spec,
                      const std::vector<Geometry>& all = resume_geometries()) {
  ResumePairs pairs(
      {.spec = with_layers(spec, 4),
       .optimizer = {.name = "adamw", .lr = 1e-3, .weight_decay = 0.1, .max_norm = 0.5},
       .global_batch = 16,
       .router_bias_rate = spec.experts && spec.experts->selection_bias ? 0.05 : 0.0});
  int count = 0;
  for (const Geometry& from : all) {
    pairs.save(from);
    for (const Geometry& to : all) {
      EXPECT_EQ(pairs.fault(from, to), "") << from.name() << " -> " << to.name();
      ++count;
    }
  }
  fmt::print("{}: {} pairs of {} geometries, worst {:.2e}\n", spec.name, count, all.size(),
             pairs.worst());
}

TEST(ResumeSoak, EveryPairWithATiedTable) { expect_all_pairs(tensor_gpt2()); }

TEST(ResumeSoak, EveryPairWithExperts) {
  for (const ModelSpec& spec : many_experts()) expect_all_pairs(spec, expert_resume_geometries());
}

TEST(ResumeSoak, EveryPairWithAHead) { expect_all_pairs(tensor_llama()); }

}  // namespace
}  // namespace quatrain
