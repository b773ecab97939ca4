// SPDX-License-Identifier: Apache-2.0
// SwiGLU and GELU against ATen's under autograd.
#include <ATen/ops/gelu.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>

#include "quatrain/kernels/pointwise.h"
#include "quatrain/kernels/testing.h"

namespace quatrain::kernels {
namespace {

using testing::leaf;
using testing::random;
using testing::relative;

constexpr testing::Bounds kBounds{1e-12, 1e-6, 6e-3};

enum class Function { kSwiglu, kGeluTanh, kGeluErf };
constexpr Function kFunctions[] = {Function::kSwiglu, Function::kGeluTanh, Function::kGeluErf};

at::Tensor forward(Function f, const at::Tensor& x) {
  return f == Function::kSwiglu ? swiglu(x) : gelu(x, f == Function::kGeluTanh);
}
ActivationGrads backward(Function f, const at::Tensor& dact, const at::Tensor& x) {
  return f == Function::kSwiglu ? swiglu_backward(dact, x)
                                : gelu_backward(dact, x, f == Function::kGeluTanh);
}
at::Tensor reference(Function f, const at::Tensor& x) {
  if (f != Function::kSwiglu) return at::gelu(x, f == Function::kGeluTanh ? "tanh" : "none");
  const std::int64_t F = x.size(1) / 2;
  return at::silu(x.narrow(1, 0, F)).mul(x.narrow(1, F, F));
}

TEST(Activation, EqualsAutograd) {
  for (const at::ScalarType dtype : testing::kDtypes)
    for (const Function f : kFunctions)
      for (const std::int64_t F : {1, 7, 16, 37, 256}) {
        SCOPED_TRACE(::testing::Message()
                     << c10::toString(dtype) << " " << static_cast<int>(f) << " " << F);
        const double bound = kBounds.of(dtype);
        const at::Tensor x =
            random({5, f == Function::kSwiglu ? 2 * F : F}, at::kDouble).mul(3).to(dtype);
        const at::Tensor dact = random({5, F}, dtype);
        const at::Tensor exact = leaf(x);
        const at::Tensor y = reference(f, exact);
        y.mul(dact.to(at::kDouble)).sum().backward();
        const ActivationGrads g = backward(f, dact, x);
        EXPECT_LT(relative(forward(f, x), y.detach()), bound);
        EXPECT_LT(relative(g.dx, exact.grad()), bound);
        EXPECT_TRUE(g.act.equal(forward(f, x)));
      }
}

// Point by point over a range that saturates both ways.
TEST(Activation, GeluHoldsOverItsRange) {
  const at::Tensor x = at::linspace(-30, 30, 6001, at::kDouble).view({1, -1});
  for (const bool tanh_form : {true, false}) {
    const at::Tensor exact = leaf(x);
    const at::Tensor y = at::gelu(exact, tanh_form ? "tanh" : "none");
    y.sum().backward();
    const ActivationGrads g = gelu_backward(x.new_ones(x.sizes()), x, tanh_form);
    EXPECT_LT(g.act.sub(y.detach()).abs().max().item<double>(), 1e-13);
    EXPECT_LT(g.dx.sub(exact.grad()).abs().max().item<double>(), 1e-13);
    const ActivationGrads single =
        gelu_backward(x.new_ones(x.sizes()).to(at::kFloat), x.to(at::kFloat), tanh_form);
    EXPECT_LT(single.act.sub(y.detach()).abs().max().item<double>(), 3e-6);
    EXPECT_LT(single.dx.sub(exact.grad()).abs().max().item<double>(), 3e-6);
  }
}

TEST(Activation, ElementsDoNotDependOnTheirPlace) {
  for (const Function f : {Function::kGeluTanh, Function::kGeluErf}) {
    const at::Tensor x = random({1, 300}, at::kFloat);
    const at::Tensor whole = forward(f, x);
    for (const std::int64_t begin : {1, 13, 64})
      for (const std::int64_t count : {1, 5, 17, 100})
        EXPECT_TRUE(forward(f, x.narrow(1, begin, count)).equal(whole.narrow(1, begin, count)));
  }
  const at::Tensor gate = random({3, 90}, at::kFloat), up = random({3, 90}, at::kFloat);
  const at::Tensor whole = swiglu(at::cat({gate, up}, 1));
  const at::Tensor part = swiglu(at::cat({gate.narrow(1, 11, 9), up.narrow(1, 11, 9)}, 1));
  EXPECT_TRUE(part.equal(whole.narrow(1, 11, 9)));
}

TEST(Activation, ThreadsDoNotChangeBits) {
  const at::Tensor x = random({200, 514}, at::kFloat), dact = random({200, 257}, at::kFloat);
  testing::with_threads([&] { return swiglu_backward(dact, x); },
                        [](const ActivationGrads& a, const ActivationGrads& b) {
                          EXPECT_TRUE(a.dx.equal(b.dx) && a.act.equal(b.act));
                        });
}

}  // namespace
}  // namespace quatrain::kernels
