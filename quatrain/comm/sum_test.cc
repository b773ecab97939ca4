// SPDX-License-Identifier: Apache-2.0
// Sums over ranks: in order, in the wide type, rounded once, the same bits in any chunks.
#include "quatrain/comm/sum.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/base/rng.h"

namespace quatrain {
namespace {

std::byte* bytes(const at::Tensor& x) { return static_cast<std::byte*>(x.data_ptr()); }

at::Tensor numbers(std::uint64_t seed, std::int64_t count, at::ScalarType dtype) {
  at::Tensor x = at::empty({count}, at::kDouble);
  RandomStream(seed, "sum").fill_normal(0, {x.data_ptr<double>(), static_cast<std::size_t>(count)});
  return x.mul(50).to(at::isFloatingType(dtype) ? dtype : at::kLong).to(dtype);
}

at::Tensor reduced(const std::vector<at::Tensor>& xs, ReduceOp op) {
  at::Tensor out = at::empty_like(xs[0]);
  std::vector<const std::byte*> sources;
  for (const at::Tensor& x : xs) sources.push_back(bytes(x));
  std::byte* const outs[] = {bytes(out)};
  reduce_in_order(outs, sources, out.numel(), out.scalar_type(), op);
  return out;
}

at::Tensor reference(const std::vector<at::Tensor>& xs, ReduceOp op) {
  const bool half = xs[0].scalar_type() == at::kBFloat16;
  at::Tensor result = half ? xs[0].to(at::kFloat) : xs[0];
  for (std::size_t r = 1; r < xs.size(); ++r) {
    const at::Tensor x = xs[r].to(result.scalar_type());
    if (op == ReduceOp::kSum) result = result.add(x);
    if (op == ReduceOp::kMax) result = at::maximum(result, x);
    if (op == ReduceOp::kMin) result = at::minimum(result, x);
  }
  return result.to(xs[0].scalar_type());
}

class SumTest : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, SumTest,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16, at::kLong,
                                           at::kInt, at::kByte));

TEST_P(SumTest, EqualsOneSourceAfterTheOther) {
  for (const std::int64_t count : {0, 1, 3, 1023, 1024, 5000}) {
    for (std::uint64_t ranks = 1; ranks <= 6; ++ranks) {
      std::vector<at::Tensor> xs;
      for (std::uint64_t r = 0; r < ranks; ++r) xs.push_back(numbers(r, count, GetParam()));
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
        EXPECT_TRUE(reduced(xs, op).equal(reference(xs, op))) << ranks << " of " << count;
      }
    }
  }
}

TEST_P(SumTest, InPlaceIntoEveryRank) {
  std::vector<at::Tensor> xs;
  for (std::uint64_t r = 0; r < 3; ++r) xs.push_back(numbers(r, 3001, GetParam()));
  const at::Tensor expected = reference(xs, ReduceOp::kSum);
  const std::vector<const std::byte*> sources = {bytes(xs[0]), bytes(xs[1]), bytes(xs[2])};
  const std::vector<std::byte*> outs = {bytes(xs[0]), bytes(xs[1]), bytes(xs[2])};
  reduce_in_order(outs, sources, 3001, GetParam(), ReduceOp::kSum);
  for (const at::Tensor& x : xs) EXPECT_TRUE(x.equal(expected));
}

TEST(Sum, RoundsBfloat16Once) {
  // 1 + 2^-9 + 2^-9: each addend alone is lost in bfloat16's eight bits, together they are kept.
  const auto half = [](double x) { return at::full({5}, x, at::kBFloat16); };
  const at::Tensor sum =
      reduced({half(1.0), half(0.001953125), half(0.001953125), half(0.00390625)}, ReduceOp::kSum);
  EXPECT_EQ(sum[4].item<double>(), 1.0078125);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(reduced({half(nan), half(1)}, ReduceOp::kSum)[0].item<double>()));
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(reduced({half(infinity), half(1)}, ReduceOp::kSum)[0].item<double>(), infinity);
}

TEST(Sum, NanWinsMaxAndMin) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::Tensor first = at::tensor({nan, 1.0, 1.0}, at::kDouble).to(dtype);
    const at::Tensor second = at::tensor({1.0, nan, 2.0}, at::kDouble).to(dtype);
    for (ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
      const at::Tensor result = reduced({first, second}, op).to(at::kDouble);
      EXPECT_TRUE(std::isnan(result[0].item<double>()));
      EXPECT_TRUE(std::isnan(result[1].item<double>()));
      EXPECT_EQ(result[2].item<double>(), op == ReduceOp::kMax ? 2.0 : 1.0);
    }
  }
}

TEST(Sum, RefusesOtherDtypes) {
  std::byte byte{};
  std::byte* const outs[] = {&byte};
  const std::byte* const sources[] = {&byte};
  EXPECT_THROW(reduce_in_order(outs, sources, 1, at::kBool, ReduceOp::kSum), BugError);
  EXPECT_THROW(reduce_in_order(outs, {}, 1, at::kFloat, ReduceOp::kSum), BugError);
}

}  // namespace
}  // namespace quatrain
