// SPDX-License-Identifier: Apache-2.0
// The whole grids of pipelines against one rank.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/pipeline/mutation_run.h"

namespace quatrain {
namespace {

void expect_one_rank(const std::vector<Case>& all, const std::string& what) {
  double worst = 0.0;
  for (const Case& c : all) {
    const Difference d = from_one_rank(c);
    EXPECT_LE(d.max_rel, 1e-12) << c.name() << ": " << d.where;
    worst = std::max(worst, d.max_rel);
  }
  fmt::print("{}: {} geometries, worst {:.2e}\n", what, all.size(), worst);
}

TEST(PipelineSoak, EveryScheduleEqualsOneRank) {
  expect_one_rank(schedule_grid({2, 4, 8}, 5), "schedules");
}

TEST(PipelineSoak, EveryCompositionEqualsOneRank) {
  expect_one_rank(composition_grid(5), "compositions");
}

TEST(PipelineSoak, MutationsThatAreAcceptedComputeTheSame) {
  const RunCounts counts = run_mutations(2027, 2000);
  fmt::print("mutations: {} accepted, rejected: {} stopped, {} wrong, {} right with buffers\n",
             counts.accepted, counts.stopped, counts.wrong, counts.right);
}

}  // namespace
}  // namespace quatrain
