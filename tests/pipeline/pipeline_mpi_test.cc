// SPDX-License-Identifier: Apache-2.0
// Pipelines under mpirun: the bits of the same geometry on thread ranks, and one rank's numbers.
#include <gtest/gtest.h>

#include "quatrain/comm/mpi/mpi_test_main.h"
#include "quatrain/engine/rank_thread.h"
#include "tests/pipeline/grid.h"

namespace quatrain {
namespace {

std::vector<Geometry> geometries(int ranks) {
  std::vector<Geometry> all;
  for (const RunSchedule& schedule : run_schedules()) {
    if (schedule.times_ranks > 1) continue;
    all.push_back({.accumulation = 4,
                   .schedule = schedule.name,
                   .pipeline = schedule.chunks > 1 ? 2 : ranks,
                   .chunks = schedule.chunks});
    Geometry& last = all.back();
    last.shards = ranks / last.pipeline;
    last.zero_stage = static_cast<int>(all.size() % 4);
  }
  if (ranks == 4) {
    all.push_back({.accumulation = 4,
                   .schedule = "zb-h1",
                   .tensor = 2,
                   .sequence_parallel = true,
                   .pipeline = 2});
    all.push_back({.shards = 2, .zero_stage = 3, .accumulation = 2, .pipeline = 2});
  }
  return all;
}

TEST(PipelineMpi, HasTheBitsOfThreadRanks) {
  const RankThread prologue({.threads = 1});
  const std::unique_ptr<Communicator> world = test_world().communicator();
  for (const Geometry& geometry : geometries(world->size())) {
    const Recipe recipe{.spec = with_layers(tensor_gpt2(), 4), .global_batch = 8, .steps = 2};
    const RunResult got = run_geometry(recipe, geometry, *world);
    if (world->rank() != 0) continue;
    EXPECT_TRUE(same_bits(got, run_on_threads(recipe, geometry))) << geometry.name();
    const Difference worst = difference(got, run_on_threads(recipe, {}));
    EXPECT_LE(worst.max_rel, 1e-12) << geometry.name() << ": " << worst.where;
  }
}

}  // namespace
}  // namespace quatrain
