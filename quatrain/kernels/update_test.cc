// SPDX-License-Identifier: Apache-2.0
// adamw_ and sgd_ against torch.optim's formulas written out in float64; bf16 values from float32
// masters; bits that do not depend on place, length or threads.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "quatrain/base/error.h"
#include "quatrain/kernels/pointwise.h"

namespace quatrain::kernels {
namespace {

double relative_error(const at::Tensor& got, const at::Tensor& want) {
  const double most = want.abs().max().item().toDouble();
  return got.to(at::kDouble).sub(want).abs().max().item().toDouble() / most;
}
at::Tensor poisoned(std::int64_t size, at::ScalarType dtype) {
  return at::full({size}, std::numeric_limits<double>::quiet_NaN(), dtype);
}
AdamWStep adamw_step(std::int64_t step) {
  return {.lr = 3e-3 / static_cast<double>(step),
          .beta1 = 0.9,
          .beta2 = 0.95,
          .eps = 1e-8,
          .weight_decay = 0.1,
          .step = step,
          .grad_scale = 0.37};
}

// torch.optim.AdamW (single tensor): decay, lerp, addcmul, addcdiv.
void adamw_reference(at::Tensor& p, const at::Tensor& grad, at::Tensor& m, at::Tensor& v,
                     const AdamWStep& s) {
  const at::Tensor g = grad.mul(s.grad_scale);
  p = p.mul(1.0 - s.lr * s.weight_decay);
  m = m.mul(s.beta1).add(g.mul(1.0 - s.beta1));
  v = v.mul(s.beta2).add(g.mul(g).mul(1.0 - s.beta2));
  const double correction1 = 1.0 - std::pow(s.beta1, static_cast<double>(s.step));
  const double correction2 = 1.0 - std::pow(s.beta2, static_cast<double>(s.step));
  const at::Tensor root = v.sqrt().div(std::sqrt(correction2)).add(s.eps);
  p = p.sub(m.div(root).mul(s.lr / correction1));
}

void sgd_reference(at::Tensor& p, const at::Tensor& grad, at::Tensor& momentum, const SgdStep& s) {
  at::Tensor g = grad.mul(s.grad_scale).add(p.mul(s.weight_decay));
  momentum = s.first ? g : momentum.mul(s.momentum).add(g);
  if (s.momentum != 0.0) g = s.nesterov ? g.add(momentum.mul(s.momentum)) : momentum;
  p = p.sub(g.mul(s.lr));
}

TEST(AdamW, equals_the_formulas_in_float64) {
  at::manual_seed(2);
  for (const std::int64_t size : {1, 7, 16, 33, 1000, 40001}) {
    at::Tensor master = at::randn({size}, at::kDouble);
    at::Tensor m = at::zeros({size}, at::kDouble);
    at::Tensor v = at::zeros({size}, at::kDouble);
    at::Tensor want = master.clone();
    at::Tensor want_m = m.clone();
    at::Tensor want_v = v.clone();
    at::Tensor value = poisoned(size, at::kDouble);
    for (std::int64_t step = 1; step <= 20; ++step) {
      const at::Tensor grad = at::randn({size}, at::kDouble);
      adamw_(value, master, grad, m, v, adamw_step(step));
      adamw_reference(want, grad, want_m, want_v, adamw_step(step));
    }
    EXPECT_LT(relative_error(master, want), 1e-13) << size;
    EXPECT_LT(relative_error(m, want_m), 1e-13) << size;
    EXPECT_LT(relative_error(v, want_v), 1e-13) << size;
    EXPECT_TRUE(value.equal(master));
  }
}

TEST(AdamW, value_may_be_the_master) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    at::Tensor shared = at::randn({101}).to(dtype);
    at::Tensor master = shared.clone();
    at::Tensor value = poisoned(101, dtype);
    const at::Tensor grad = at::randn({101}).to(dtype);
    at::Tensor m = at::randn({101}).to(dtype);
    at::Tensor v = at::randn({101}).to(dtype).abs();
    at::Tensor m2 = m.clone();
    at::Tensor v2 = v.clone();
    adamw_(shared, shared, grad, m, v, adamw_step(3));
    adamw_(value, master, grad, m2, v2, adamw_step(3));
    EXPECT_TRUE(shared.equal(master));
    EXPECT_TRUE(value.equal(master));
    EXPECT_TRUE(m.equal(m2) && v.equal(v2));
  }
}

TEST(AdamW, bf16_values_are_rounded_masters) {
  for (const auto grad_dtype : {at::kFloat, at::kBFloat16}) {
    at::Tensor master = at::randn({777});
    at::Tensor want = master.to(at::kDouble);
    at::Tensor value = poisoned(777, at::kBFloat16);
    const at::Tensor grad = at::randn({777}).to(grad_dtype);
    at::Tensor m = at::zeros({777});
    at::Tensor v = at::zeros({777});
    at::Tensor want_m = m.to(at::kDouble);
    at::Tensor want_v = v.to(at::kDouble);
    adamw_(value, master, grad, m, v, adamw_step(1));
    adamw_reference(want, grad.to(at::kDouble), want_m, want_v, adamw_step(1));
    EXPECT_LT(relative_error(master, want), 1e-6);
    EXPECT_TRUE(value.equal(master.to(at::kBFloat16)));
  }
}

TEST(AdamW, rounds_to_nearest_even) {
  // 1 + 2^-8 lies between the bf16 neighbours 1 and 1 + 2^-7; 1 + 3 * 2^-8 between two others.
  at::Tensor master = at::empty({4});
  const double exact[] = {1.0 + 1.0 / 256, 1.0 + 3.0 / 256, -1.0 - 1.0 / 256, 1.0 + 1.0 / 128};
  for (std::int64_t i = 0; i < 4; ++i) master[i].fill_(exact[i]);
  at::Tensor value = poisoned(4, at::kBFloat16);
  at::Tensor zero = at::zeros({4});
  at::Tensor m = at::zeros({4});
  at::Tensor v = at::zeros({4});
  AdamWStep step = adamw_step(1);
  step.weight_decay = 0.0;
  adamw_(value, master, zero, m, v, step);
  const double want[] = {1.0, 1.0 + 1.0 / 64, -1.0, 1.0 + 1.0 / 128};
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(value[i].item().toDouble(), want[i]);
}

TEST(Sgd, equals_the_formulas_in_float64) {
  at::manual_seed(3);
  for (const double momentum : {0.0, 0.9}) {
    for (const bool nesterov : {false, true}) {
      at::Tensor master = at::randn({1003}, at::kDouble);
      at::Tensor velocity = poisoned(1003, at::kDouble);
      at::Tensor want = master.clone();
      at::Tensor want_velocity;
      at::Tensor value = poisoned(1003, at::kDouble);
      for (int i = 0; i < 20; ++i) {
        const at::Tensor grad = at::randn({1003}, at::kDouble);
        const SgdStep step{.lr = 0.02,
                           .momentum = momentum,
                           .weight_decay = 0.05,
                           .nesterov = nesterov && momentum > 0.0,
                           .first = i == 0,
                           .grad_scale = 0.6};
        sgd_(value, master, grad, velocity, step);
        sgd_reference(want, grad, want_velocity, step);
      }
      EXPECT_LT(relative_error(master, want), 1e-13);
      EXPECT_TRUE(value.equal(master));
      if (momentum > 0.0) {
        EXPECT_LT(relative_error(velocity, want_velocity), 1e-13);
      }
    }
  }
}

TEST(Sgd, bf16_values_are_rounded_masters) {
  at::Tensor master = at::randn({99});
  at::Tensor value = poisoned(99, at::kBFloat16);
  at::Tensor none;
  sgd_(value, master, at::randn({99}), none,
       {.lr = 0.1, .momentum = 0.0, .weight_decay = 0.0, .nesterov = false, .first = true});
  EXPECT_TRUE(value.equal(master.to(at::kBFloat16)));
}

// Every dtype, every offset and length inside a longer span, every thread count: the same bits.
TEST(Updates, bits_do_not_depend_on_place_or_threads) {
  const std::int64_t size = 70001;
  const int before = at::get_num_threads();
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const auto wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor start = at::randn({size}).to(wide);
    const at::Tensor grad = at::randn({size}).to(wide);
    const auto run = [&](std::int64_t begin, std::int64_t length) {
      at::Tensor master = start.narrow(0, begin, length).clone();
      at::Tensor value = poisoned(length, dtype);
      at::Tensor m = grad.narrow(0, begin, length).mul(0.3);
      at::Tensor v = grad.narrow(0, begin, length).abs();
      adamw_(value, master, grad.narrow(0, begin, length), m, v, adamw_step(5));
      sgd_(value, master, grad.narrow(0, begin, length), m,
           {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true, .first = false});
      return master;
    };
    at::set_num_threads(1);
    const at::Tensor whole = run(0, size);
    for (const int threads : {1, 2, 4}) {
      at::set_num_threads(threads);
      EXPECT_TRUE(whole.equal(run(0, size))) << threads;
      for (const std::int64_t length : {1, 7, 15, 44, 4097}) {
        EXPECT_TRUE(whole.narrow(0, 13, length).equal(run(13, length))) << length;
      }
    }
  }
  at::set_num_threads(before);
}

TEST(Updates, refuse_what_does_not_fit) {
  at::Tensor value = at::zeros({4}, at::kBFloat16);
  at::Tensor master = at::zeros({4});
  at::Tensor m = at::zeros({4});
  at::Tensor narrow = at::zeros({4}, at::kBFloat16);
  at::Tensor longer = at::zeros({5});
  EXPECT_THROW(adamw_(value, master, m, m, narrow, adamw_step(1)), BugError);
  EXPECT_THROW(adamw_(value, master, longer, m, m, adamw_step(1)), BugError);
  EXPECT_THROW(adamw_(value, master, m.to(at::kDouble), m, m, adamw_step(1)), BugError);
}

}  // namespace
}  // namespace quatrain::kernels
