// SPDX-License-Identifier: Apache-2.0
#include "quatrain/base/units.h"

#include <gtest/gtest.h>

namespace quatrain {
namespace {

template <class A, class B>
concept Addable = requires(A a, B b) {
  a + b;
};
static_assert(Addable<Seconds, Seconds>);
static_assert(!Addable<Seconds, Bytes>);
static_assert(!Addable<Seconds, double>);
static_assert(!Addable<Flops, FlopsPerSecond>);

TEST(Units, Arithmetic) {
  Bytes total{3};
  total += Bytes{4};
  total -= Bytes{2};
  EXPECT_EQ(total, Bytes{5});
  EXPECT_EQ(3 * total, Bytes{15});
  EXPECT_LT(Bytes{4}, total);
  EXPECT_EQ(Bytes{100} / BytesPerSecond{50.0}, Seconds{2.0});
  EXPECT_EQ(Flops{9.0} / FlopsPerSecond{3.0}, Seconds{3.0});
}

}  // namespace
}  // namespace quatrain
