// SPDX-License-Identifier: Apache-2.0
// The planner's properties over many more draws.
#include <gtest/gtest.h>

#include "quatrain/planner/draw_test_support.h"

namespace quatrain {
namespace {

TEST(PropertiesSoak, MoreOfAnythingIsNeverWorse) {
  for (unsigned seed = 100; seed < 150; ++seed) more_of_anything_is_never_worse(100, seed);
}

}  // namespace
}  // namespace quatrain
