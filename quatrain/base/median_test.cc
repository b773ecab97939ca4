// SPDX-License-Identifier: Apache-2.0
#include "quatrain/base/median.h"

#include <gtest/gtest.h>

namespace quatrain {
namespace {

TEST(Median, IsTheMiddleInWhateverOrder) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 3);
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(median({}), 0);
}

}  // namespace
}  // namespace quatrain
