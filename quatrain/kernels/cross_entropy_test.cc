// SPDX-License-Identifier: Apache-2.0
// cross_entropy_ against autograd of log_softmax and its pick in float64: loss, z-loss, gradients,
// rows that are not trained, extreme logits, odd vocabularies; bits on every team.
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "quatrain/base/error.h"
#include "quatrain/kernels/pointwise.h"

namespace quatrain::kernels {
namespace {

struct Reference {
  double loss, z, max_logit;
  std::int64_t tokens;
  at::Tensor gradient;
};

Reference reference(const at::Tensor& logits, const at::Tensor& labels, double scale,
                    double z_coef) {
  at::Tensor x = logits.to(at::kDouble).clone().requires_grad_();
  const at::Tensor trained = labels.ne(-100);
  const at::Tensor safe = labels.clamp_min(0).unsqueeze(1);
  const at::Tensor weight = trained.to(at::kDouble);
  const at::Tensor picked = x.log_softmax(1).gather(1, safe).squeeze(1);
  const at::Tensor loss = picked.neg().mul(weight).sum();
  const at::Tensor z = x.logsumexp(1).square().mul(weight).sum();
  loss.add(z.mul(z_coef)).mul(scale).backward();
  const at::Tensor largest = x.detach().abs().mul(weight.unsqueeze(1)).max();
  return {loss.item().toDouble(), z.item().toDouble(), largest.item().toDouble(),
          trained.sum().item().toLong(), x.grad()};
}

double error(const at::Tensor& got, const at::Tensor& want) {
  const double most = want.abs().max().item().toDouble();
  const double difference = got.to(at::kDouble).sub(want).abs().max().item().toDouble();
  return most > 0.0 ? difference / most : difference;
}

class CrossEntropyOf : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  double sums_tolerance() const { return GetParam() == at::kDouble ? 1e-12 : 2e-6; }
  double gradient_tolerance() const {
    return GetParam() == at::kDouble ? 1e-12 : (GetParam() == at::kFloat ? 2e-6 : 4e-3);
  }
  void expect_equal(const at::Tensor& logits, const at::Tensor& labels, double scale,
                    double z_coef) const {
    const Reference want = reference(logits, labels, scale, z_coef);
    at::Tensor x = logits.clone();
    const CrossEntropySums got = cross_entropy_(x, labels, scale, z_coef, true);
    const std::string where = "vocabulary " + std::to_string(logits.size(1));
    EXPECT_NEAR(got.loss, want.loss, sums_tolerance() * std::abs(want.loss)) << where;
    EXPECT_NEAR(got.z, want.z, sums_tolerance() * std::abs(want.z)) << where;
    EXPECT_EQ(got.max_logit, want.max_logit) << where;
    EXPECT_EQ(got.tokens, want.tokens) << where;
    EXPECT_LT(error(x, want.gradient), gradient_tolerance()) << where;

    at::Tensor untouched = logits.clone();
    const CrossEntropySums again = cross_entropy_(untouched, labels, scale, z_coef, false);
    EXPECT_TRUE(untouched.equal(logits));
    EXPECT_EQ(again.loss, got.loss);
    EXPECT_EQ(again.z, got.z);
  }
};

TEST_P(CrossEntropyOf, equals_autograd) {
  at::manual_seed(4);
  for (const std::int64_t vocabulary : {1, 2, 7, 16, 31, 100, 513, 1003}) {
    const at::Tensor logits = at::randn({11, vocabulary}).mul(3.0).to(GetParam());
    const at::Tensor labels = at::randint(0, vocabulary, {11}, at::kLong);
    labels[3].fill_(-100);
    labels[10].fill_(-100);
    expect_equal(logits, labels, 1.0, 0.0);
    expect_equal(logits, labels, 0.013, 0.0);
    expect_equal(logits, labels, 0.5, 1e-2);
  }
}

TEST_P(CrossEntropyOf, extreme_logits) {
  const at::Tensor logits = at::randn({6, 50}).to(GetParam());
  const at::Tensor labels = at::randint(0, 50, {6}, at::kLong);
  logits[0].narrow(0, 3, 1).fill_(80.0);
  logits[1].narrow(0, 3, 1).fill_(-80.0);
  logits[2].fill_(80.0);
  logits[3].narrow(0, 0, 25).fill_(80.0);
  logits[3].narrow(0, 25, 25).fill_(-80.0);
  logits[4].fill_(-80.0);
  labels[0].fill_(3);
  labels[3].fill_(40);
  expect_equal(logits, labels, 1.0, 0.0);
  expect_equal(logits, labels, 1.0, 1e-3);
}

TEST_P(CrossEntropyOf, rows_that_are_not_trained_are_zero) {
  at::Tensor logits = at::full({3, 40}, std::numeric_limits<double>::quiet_NaN(), GetParam());
  logits[1].fill_(0.5);
  const at::Tensor labels = at::full({3}, -100, at::kLong);
  labels[1].fill_(7);
  const CrossEntropySums got = cross_entropy_(logits, labels, 1.0, 0.0, true);
  EXPECT_EQ(got.tokens, 1);
  EXPECT_EQ(got.max_logit, 0.5);
  EXPECT_NEAR(got.loss, std::log(40.0), 1e-6);
  EXPECT_TRUE(logits[0].eq(0.0).all().item().toBool());
  EXPECT_TRUE(logits[2].eq(0.0).all().item().toBool());
}

TEST_P(CrossEntropyOf, a_nan_reaches_the_loss) {
  at::Tensor logits = at::randn({2, 40}).to(GetParam());
  logits[1].narrow(0, 38, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  const at::Tensor labels = at::full({2}, 1, at::kLong);
  EXPECT_TRUE(std::isnan(cross_entropy_(logits, labels, 1.0, 0.0, false).loss));
}

TEST_P(CrossEntropyOf, bits_do_not_depend_on_threads_or_rows) {
  const at::Tensor logits = at::randn({23, 301}).to(GetParam());
  const at::Tensor labels = at::randint(0, 301, {23}, at::kLong);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  at::Tensor one = logits.clone();
  const CrossEntropySums sums = cross_entropy_(one, labels, 0.1, 1e-3, true);
  for (const int threads : {2, 4}) {
    at::set_num_threads(threads);
    at::Tensor x = logits.clone();
    const CrossEntropySums again = cross_entropy_(x, labels, 0.1, 1e-3, true);
    EXPECT_TRUE(x.equal(one)) << threads;
    EXPECT_EQ(again.loss, sums.loss);
    EXPECT_EQ(again.z, sums.z);
  }
  at::Tensor lone = logits.narrow(0, 17, 1).clone();
  cross_entropy_(lone, labels.narrow(0, 17, 1), 0.1, 1e-3, true);
  EXPECT_TRUE(lone.equal(one.narrow(0, 17, 1)));
  at::set_num_threads(before);
}

INSTANTIATE_TEST_SUITE_P(dtypes, CrossEntropyOf,
                         ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16),
                         [](const auto& dtype) { return std::string(c10::toString(dtype.param)); });

TEST(CrossEntropy, refuses_labels_outside_the_vocabulary) {
  at::Tensor logits = at::randn({2, 5});
  for (const std::int64_t label : {-1, 5}) {
    EXPECT_THROW(cross_entropy_(logits, at::full({2}, label, at::kLong), 1.0, 0.0, true), BugError);
  }
  EXPECT_THROW(cross_entropy_(logits, at::full({3}, 1, at::kLong), 1.0, 0.0, true), BugError);
}

}  // namespace
}  // namespace quatrain::kernels
