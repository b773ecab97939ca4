// SPDX-License-Identifier: Apache-2.0
#include "quatrain/verify/compare.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace quatrain {
namespace {

at::Tensor numbers(std::initializer_list<double> values) {
  return at::tensor(at::ArrayRef<double>(values), at::kDouble);
}

TEST(Compare, WorstFirstByName) {
  const NamedTensors want = {{"a", numbers({1.0, -4.0})}, {"b", numbers({2.0, 0.0})}};
  const NamedTensors got = {{"a", numbers({1.0, -4.0})}, {"b", numbers({2.0, 0.5})}};
  const std::vector<TensorError> errors = compare(got, want);
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_EQ(errors[0].name, "b");
  EXPECT_DOUBLE_EQ(errors[0].max_rel, 0.25);
  EXPECT_EQ(errors[1].max_rel, 0.0);
}

TEST(Compare, MissingMisshapedAndNotFiniteAreInfinitelyFar) {
  const NamedTensors want = {{"a", numbers({1.0})}, {"b", numbers({1.0})}, {"c", numbers({1.0})}};
  const NamedTensors got = {{"b", numbers({1.0, 1.0})}, {"c", numbers({std::nan("")})}};
  for (const TensorError& error : compare(got, want)) {
    EXPECT_TRUE(std::isinf(error.max_rel)) << error.name;
  }
}

TEST(Compare, RoundingAroundZeroIsZero) {
  const NamedTensors want = {{"big", numbers({10.0})}, {"none", numbers({1e-18})}};
  EXPECT_EQ(compare({{"big", numbers({10.0})}, {"none", numbers({-3e-17})}}, want)[0].max_rel, 0.0);
  EXPECT_GT(compare({{"big", numbers({10.0})}, {"none", numbers({1e-9})}}, want)[0].max_rel, 1.0);
}

TEST(Compare, Scalars) {
  EXPECT_DOUBLE_EQ(relative_error(1.5, 1.0), 0.5);
  EXPECT_EQ(relative_error(0.0, 0.0), 0.0);
  EXPECT_TRUE(std::isinf(relative_error(std::numeric_limits<double>::infinity(), 1.0)));
}

}  // namespace
}  // namespace quatrain
