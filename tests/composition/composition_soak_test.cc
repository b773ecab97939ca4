// SPDX-License-Identifier: Apache-2.0
// Everything with everything against one rank: the whole array.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <exception>

#include "tests/composition/factors.h"

namespace quatrain {
namespace {

// A row that throws or differs names itself; the others run.
TEST(CompositionSoak, EqualsOneRank) {
  const std::uint32_t seed = composition_seed();
  const CoveringArray array(composition_space(), seed);
  double worst = 0.0;
  for (const Row& row : array.rows()) {
    SCOPED_TRACE(describe(row));
    try {
      const Difference found = from_one_rank({recipe_of(row), geometry_of(row)});
      worst = std::max(worst, found.max_rel);
      EXPECT_LE(found.max_rel, 1e-12) << found.where;
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  fmt::print("seed {}: {} combinations cover {} triples, worst {:.2e}\n", seed, array.rows().size(),
             array.triples(), worst);
}

}  // namespace
}  // namespace quatrain
