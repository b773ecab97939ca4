// SPDX-License-Identifier: Apache-2.0
// Geometries under mpirun: the bits of the same geometry on thread ranks, and one rank's numbers.
#pragma once
#include <gtest/gtest.h>

#include <vector>

#include "quatrain/comm/mpi/mpi_test_main.h"
#include "quatrain/engine/rank_thread.h"
#include "tests/tensor/grid.h"

namespace quatrain {

// Of those that fill this world about `count`.
inline void expect_thread_bits_and_one_rank(const std::vector<Case>& grid, std::size_t count) {
  const RankThread prologue({.threads = 1});
  const std::unique_ptr<Communicator> world = test_world().communicator();
  std::vector<Case> cases;
  for (const Case& c : grid) {
    if (c.geometry.ranks() == world->size()) cases.push_back(c);
  }
  for (const Case& c : sample(cases, count)) {
    SCOPED_TRACE(c.name());
    const RunResult got = run_geometry(c.recipe, c.geometry, *world);
    if (world->rank() != 0) continue;
    EXPECT_TRUE(same_bits(got, run_on_threads(c.recipe, c.geometry)));
    const Difference worst = difference(got, one_rank(c.recipe));
    EXPECT_LE(worst.max_rel, 1e-12) << worst.where;
  }
}

}  // namespace quatrain
