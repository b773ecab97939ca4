// SPDX-License-Identifier: Apache-2.0
// The whole grid and every mutation, of which the module's tests take a part.
#include <gtest/gtest.h>

#include "quatrain/schedule/grid_test_support.h"
#include "quatrain/schedule/mutation_test_support.h"

namespace quatrain {
namespace {

TEST(ScheduleSoak, EveryScheduleHoldsOverTheGrid) {
  for (const GridPoint& point : grid()) expect_sound(point);
}

TEST(ScheduleSoak, EveryLoweringPassesBlockingRendezvous) {
  for (const GridPoint& point : grid()) {
    if (!defined(point)) continue;
    const Schedule rows = with_tied_reduce(
        with_optimizer_step(with_messages(make_schedule(point.name, point.request))));
    EXPECT_EQ(run_blocking(rows), Outcome::kRight) << to_string(point);
    EXPECT_EQ(to_string(check(rows)), "") << to_string(point);
  }
}

TEST(ScheduleSoak, Mutations) { expect_verdicts(2024, 20000); }

}  // namespace
}  // namespace quatrain
