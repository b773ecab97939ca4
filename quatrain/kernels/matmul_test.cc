// SPDX-License-Identifier: Apache-2.0
// matmul against sums of products in float64: transpositions, padded rows, odd and empty sizes,
// poisoned outputs, thread counts, and what is counted.
#include "quatrain/kernels/matmul.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "quatrain/base/error.h"
#include "quatrain/kernels/flops.h"

namespace quatrain::kernels {
namespace {

struct Case {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b;
  std::int64_t padding;  // unused elements after each row of every matrix
};

at::Tensor padded(std::int64_t rows, std::int64_t columns, std::int64_t padding,
                  at::ScalarType dtype) {
  const at::Tensor wide_rows = at::randn({rows, columns + padding}).to(dtype);
  return wide_rows.narrow(1, 0, columns);
}
at::Tensor poisoned(std::int64_t rows, std::int64_t columns, std::int64_t padding,
                    at::ScalarType dtype) {
  return at::full({rows, columns + padding}, std::numeric_limits<double>::quiet_NaN(), dtype)
      .narrow(1, 0, columns);
}
// By broadcast products and sums: no GEMM.
at::Tensor product_reference(Operand a, Operand b) {
  const at::Tensor left = (a.transposed ? a.matrix.t() : a.matrix).to(at::kDouble);
  const at::Tensor right = (b.transposed ? b.matrix.t() : b.matrix).to(at::kDouble);
  return left.unsqueeze(2).mul(right.unsqueeze(0)).sum(1);
}
double relative_error(const at::Tensor& got, const at::Tensor& want) {
  if (want.numel() == 0) return 0.0;
  const double most = want.abs().max().item().toDouble();
  const double error = got.to(at::kDouble).sub(want).abs().max().item().toDouble();
  return most > 0.0 ? error / most : error;
}
double tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-13 : (dtype == at::kFloat ? 1e-5 : 5e-3);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const std::int64_t sizes[][3] = {{1, 1, 1},     {1, 7, 5},    {7, 1, 5},       {3, 5, 1},
                                   {5, 13, 9},    {64, 48, 33}, {37, 101, 65},   {101, 37, 64},
                                   {2, 90, 17},   {130, 3, 40}, {190, 144, 130}, {17, 300, 256},
                                   {530, 48, 60}, {60, 48, 530}};
  for (const auto& size : sizes) {
    for (int layout = 0; layout < 4; ++layout) {
      for (const std::int64_t padding : {0, 5}) {
        all.push_back({size[0], size[1], size[2], (layout & 1) != 0, (layout & 2) != 0, padding});
      }
    }
  }
  return all;
}

class MatmulOf : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(MatmulOf, equals_sums_of_products) {
  at::manual_seed(1);
  for (const Case& c : cases()) {
    const at::Tensor a = c.transpose_a ? padded(c.k, c.m, c.padding, GetParam())
                                       : padded(c.m, c.k, c.padding, GetParam());
    const at::Tensor b = c.transpose_b ? padded(c.n, c.k, c.padding, GetParam())
                                       : padded(c.k, c.n, c.padding, GetParam());
    const Operand left{a, c.transpose_a};
    const Operand right{b, c.transpose_b};
    const at::Tensor want = product_reference(left, right);
    const auto where = [&] {
      return ::testing::Message() << c.m << "x" << c.n << "x" << c.k << " layout " << c.transpose_a
                                  << c.transpose_b << " padding " << c.padding;
    };
    EXPECT_LT(relative_error(matmul(left, right), want), tolerance(GetParam())) << where();
    at::Tensor out = poisoned(c.m, c.n, c.padding, GetParam());
    matmul_out(out, left, right);
    EXPECT_LT(relative_error(out, want), tolerance(GetParam())) << where();

    const at::ScalarType wide = GetParam() == at::kDouble ? at::kDouble : at::kFloat;
    at::Tensor sum = padded(c.m, c.n, c.padding, wide);
    const at::Tensor before = sum.to(at::kDouble).clone();
    matmul_add(sum, left, right);
    EXPECT_LT(relative_error(sum, before.add(want)), GetParam() == at::kDouble ? 1e-13 : 1e-5)
        << where();
  }
}

TEST_P(MatmulOf, leaves_padding_alone) {
  const at::Tensor whole = at::full({9, 12}, 7.0, GetParam());
  at::Tensor out = whole.narrow(1, 0, 8);
  matmul_out(out, n(padded(9, 6, 0, GetParam())), n(padded(6, 8, 0, GetParam())));
  EXPECT_TRUE(whole.narrow(1, 8, 4).eq(7.0).all().item().toBool());
}

TEST_P(MatmulOf, empty_dimensions) {
  const at::Tensor none = at::randn({3, 0}).to(GetParam());
  const at::Tensor also_none = at::randn({0, 4}).to(GetParam());
  at::Tensor out = poisoned(3, 4, 2, GetParam());
  matmul_out(out, n(none), n(also_none));
  EXPECT_TRUE(out.eq(0.0).all().item().toBool());
  const at::ScalarType wide = GetParam() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor sum = at::full({3, 4}, 2.0, wide);
  matmul_add(sum, n(none), n(also_none));
  EXPECT_TRUE(sum.eq(2.0).all().item().toBool());
  EXPECT_EQ(matmul(n(also_none), n(at::randn({4, 5}).to(GetParam()))).numel(), 0);
  EXPECT_EQ(matmul(n(at::randn({5, 4}).to(GetParam())), t(also_none)).numel(), 0);
}

TEST_P(MatmulOf, same_call_same_bits) {
  const at::Tensor a = padded(200, 96, 0, GetParam());
  const at::Tensor b = padded(120, 96, 0, GetParam());
  EXPECT_TRUE(matmul(n(a), t(b)).equal(matmul(n(a), t(b))));
}

INSTANTIATE_TEST_SUITE_P(dtypes, MatmulOf,
                         ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16),
                         [](const auto& dtype) { return std::string(c10::toString(dtype.param)); });

// float32 pieces are whole in the inner dimension: the cut over threads changes no bit.
TEST(Matmul, float32_bits_do_not_depend_on_threads) {
  const at::Tensor a = padded(203, 300, 0, at::kFloat);
  const at::Tensor b = padded(150, 300, 0, at::kFloat);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = matmul(n(a), t(b));
  const at::Tensor turned_one = matmul(n(b), t(a));
  for (const int threads : {2, 3, 4}) {
    at::set_num_threads(threads);
    EXPECT_TRUE(one.equal(matmul(n(a), t(b)))) << threads;
    EXPECT_TRUE(turned_one.equal(matmul(n(b), t(a)))) << threads;
  }
  at::set_num_threads(before);
}

TEST(Matmul, ranks_as_threads) {
  const at::Tensor a = padded(64, 80, 0, at::kDouble);
  const at::Tensor b = padded(48, 80, 0, at::kDouble);
  const at::Tensor want = product_reference(n(a), t(b));
  std::vector<double> errors(4, 1.0);
  std::vector<std::thread> ranks;
  for (std::size_t r = 0; r < errors.size(); ++r) {
    ranks.emplace_back([&, r] {
      at::set_num_threads(1);
      for (int i = 0; i < 20; ++i) errors[r] = relative_error(matmul(n(a), t(b)), want);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const double error : errors) EXPECT_LT(error, 1e-13);
}

TEST(Matmul, counts_flops_by_pass) {
  const at::Tensor a = padded(6, 4, 0, at::kFloat);
  const at::Tensor b = padded(4, 10, 0, at::kFloat);
  at::Tensor sum = at::full({6, 10}, 0.0);
  FlopCounter counter;
  {
    const ScopedFlopCounter scope(&counter);
    matmul(n(a), n(b));
    counter.pass = PassKind::kBackwardInput;
    {
      const ScopedPass pass(PassKind::kBackwardWeight);
      matmul_add(sum, n(a), n(b));
      matmul_add(sum, n(a), n(b));
    }
    count_flops(5);
  }
  count_flops(1000);
  EXPECT_EQ(counter[PassKind::kForward], 2 * 6 * 4 * 10);
  EXPECT_EQ(counter[PassKind::kBackwardWeight], 2 * 2 * 6 * 4 * 10);
  EXPECT_EQ(counter[PassKind::kBackwardInput], 5);
  EXPECT_EQ(counter.total(), 3 * 480 + 5);
}

TEST(Matmul, refuses_what_does_not_fit) {
  const at::Tensor a = padded(6, 4, 0, at::kFloat);
  at::Tensor out = at::full({6, 6}, 0.0);
  EXPECT_THROW(matmul(n(a), n(a)), BugError);
  EXPECT_THROW(matmul(n(a), t(a.to(at::kDouble))), BugError);
  EXPECT_THROW(matmul(n(a.t()), n(a)), BugError);
  at::Tensor small = out.narrow(0, 0, 5);
  EXPECT_THROW(matmul_out(small, n(a), t(a)), BugError);
  at::Tensor other = out.to(at::kDouble);
  EXPECT_THROW(matmul_add(other, n(a), t(a)), BugError);
}

}  // namespace
}  // namespace quatrain::kernels
