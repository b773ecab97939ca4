// SPDX-License-Identifier: Apache-2.0
// add_rows, sum_squares, embedding and its gradient against ATen in float64, and the order of their
// sums: the same bits on every team.
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "quatrain/base/error.h"
#include "quatrain/kernels/pointwise.h"

namespace quatrain::kernels {
namespace {

double relative_error(const at::Tensor& got, const at::Tensor& want) {
  const double most = want.abs().max().item().toDouble();
  return got.to(at::kDouble).sub(want).abs().max().item().toDouble() / most;
}
at::ScalarType wide_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}
double tolerance(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-13 : 1e-5; }

// Runs f with 1, 2 and 4 threads and expects one result.
template <class F>
void expect_same_on_every_team(const F& f) {
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = f();
  for (const int threads : {2, 4}) {
    at::set_num_threads(threads);
    EXPECT_TRUE(one.equal(f())) << threads << " threads";
  }
  at::set_num_threads(before);
}

class ReduceOf : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(ReduceOf, add_rows_equals_column_sums) {
  for (const std::int64_t rows : {0, 1, 37}) {
    for (const std::int64_t width : {1, 3, 65, 300}) {
      const at::Tensor x = at::randn({rows, width + 3}).to(GetParam()).narrow(1, 2, width);
      at::Tensor out = at::randn({width}).to(wide_of(GetParam()));
      const at::Tensor want = out.to(at::kDouble).add(x.to(at::kDouble).sum(0));
      add_rows(out, x);
      EXPECT_LT(relative_error(out, want), tolerance(GetParam())) << rows << "x" << width;
    }
  }
}

TEST_P(ReduceOf, add_rows_in_row_order) {
  const at::Tensor x = at::randn({50, 200}).to(GetParam());
  at::Tensor in_parts = at::zeros({200}, wide_of(GetParam()));
  for (const std::int64_t cut : {0, 17}) add_rows(in_parts, x.narrow(0, cut, cut == 0 ? 17 : 33));
  expect_same_on_every_team([&] {
    at::Tensor out = at::zeros({200}, wide_of(GetParam()));
    add_rows(out, x);
    EXPECT_TRUE(out.equal(in_parts)) << "rows in two calls";
    return out;
  });
}

TEST_P(ReduceOf, sum_squares_equals_float64) {
  for (const std::int64_t size : {0, 1, 5, 4095, 4096, 4097, 100003}) {
    const at::Tensor x = at::randn({size}).to(GetParam());
    const double want = x.to(at::kDouble).square().sum().item().toDouble();
    EXPECT_NEAR(sum_squares(x), want, 1e-13 * want) << size;
  }
  const at::Tensor x = at::randn({99, 101}).to(GetParam());
  EXPECT_EQ(sum_squares(x), sum_squares(x.reshape({-1})));
  EXPECT_EQ(sum_squares(x.t()), sum_squares(x.t().contiguous()));
  expect_same_on_every_team([&] { return at::tensor(sum_squares(x), at::kDouble); });
}

TEST_P(ReduceOf, embedding_takes_rows) {
  const at::Tensor table = at::randn({50, 13}).to(GetParam());
  const at::Tensor ids = at::randint(0, 50, {200}, at::kLong);
  EXPECT_TRUE(embedding(table, ids, whole_vocab(table)).equal(table.index_select(0, ids)));
  const at::Tensor padded = at::randn({50, 17}).to(GetParam()).narrow(1, 0, 13);
  EXPECT_TRUE(embedding(padded, ids, whole_vocab(padded)).equal(padded.index_select(0, ids)));
  EXPECT_EQ(embedding(table, ids.narrow(0, 0, 0), whole_vocab(table)).numel(), 0);
}

TEST_P(ReduceOf, embedding_of_shares_adds_up) {
  const at::Tensor table = at::randn({50, 13}).to(GetParam());
  const at::Tensor ids = at::randint(0, 50, {200}, at::kLong);
  const at::Tensor dy = at::randn({200, 13}).to(GetParam());
  at::Tensor sum = at::zeros({200, 13}, GetParam());
  at::Tensor grads = at::zeros({50, 13}, wide_of(GetParam()));
  for (const auto& [begin, words] : {std::pair<int, int>{0, 17}, {17, 1}, {18, 32}}) {
    sum.add_(embedding(table.narrow(0, begin, words), ids, {begin, 50}));
    at::Tensor own = grads.narrow(0, begin, words);
    embedding_add_grad(own, ids, dy, {begin, 50});
  }
  at::Tensor whole = at::zeros({50, 13}, wide_of(GetParam()));
  embedding_add_grad(whole, ids, dy, whole_vocab(whole));
  EXPECT_TRUE(sum.equal(table.index_select(0, ids)));
  EXPECT_TRUE(grads.equal(whole));
}

TEST_P(ReduceOf, embedding_gradient_in_order) {
  for (const std::int64_t width : {1, 7, 200}) {
    const at::Tensor ids = at::randint(0, 9, {300}, at::kLong);  // every row many times
    const at::Tensor dy = at::randn({300, width}).to(GetParam());
    const at::Tensor before = at::randn({9, width}).to(wide_of(GetParam()));
    const at::Tensor want = before.to(at::kDouble).index_add(0, ids, dy.to(at::kDouble));
    expect_same_on_every_team([&] {
      at::Tensor grad = before.clone();
      embedding_add_grad(grad, ids, dy, whole_vocab(grad));
      EXPECT_LT(relative_error(grad, want), tolerance(GetParam())) << width;
      return grad;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(dtypes, ReduceOf,
                         ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16),
                         [](const auto& dtype) { return std::string(c10::toString(dtype.param)); });

TEST(Embedding, refuses_ids_outside_the_vocabulary) {
  const at::Tensor table = at::zeros({5, 2});
  at::Tensor grad = at::zeros({5, 2});
  const at::Tensor dy = at::zeros({1, 2});
  for (const std::int64_t id : {-1, 5}) {
    const at::Tensor ids = at::full({1}, id, at::kLong);
    EXPECT_THROW(embedding(table, ids, whole_vocab(table)), BugError);
    EXPECT_THROW(embedding_add_grad(grad, ids, dy, whole_vocab(grad)), BugError);
  }
}

}  // namespace
}  // namespace quatrain::kernels
