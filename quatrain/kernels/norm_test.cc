// SPDX-License-Identifier: Apache-2.0
// Norms against their definition under autograd, and the rules of their bits.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "quatrain/base/error.h"
#include "quatrain/kernels/pointwise.h"
#include "quatrain/kernels/testing.h"

namespace quatrain::kernels {
namespace {

using testing::leaf;
using testing::random;
using testing::relative;

constexpr double kEps = 1e-5;
constexpr testing::Bounds kBounds{1e-12, 2e-6, 1.2e-2};

struct Shape {
  std::int64_t L, leaf, D;  // L leaves of `leaf` rows
};
const Shape kShapes[] = {{1, 1, 1}, {1, 5, 3}, {2, 3, 16}, {3, 7, 33}, {2, 40, 257}, {1, 64, 384}};

at::Tensor reference(const at::Tensor& x, const at::Tensor& gain, const at::Tensor& bias) {
  const at::Tensor centred = bias.defined() ? x.sub(x.mean(-1, true)) : x;
  const at::Tensor rstd = centred.square().mean(-1, true).add(kEps).rsqrt();
  const at::Tensor y = centred.mul(rstd).mul(gain);
  return bias.defined() ? y.add(bias) : y;
}

struct Inputs {
  at::Tensor x, residual, gain, bias, dy, residual_grad;
};
Inputs make(const Shape& s, at::ScalarType dtype, bool layer_norm) {
  const std::int64_t N = s.L * s.leaf;
  return {random({N, s.D}, dtype), random({N, s.D}, dtype),
          random({s.D}, dtype),    layer_norm ? random({s.D}, dtype) : at::Tensor(),
          random({N, s.D}, dtype), random({N, s.D}, dtype)};
}

struct Results {
  at::Tensor sum, y, dx, dgain, dbias;
};
Results run(const Inputs& in, std::int64_t leaf_rows) {
  at::Tensor x = in.x.clone();
  const NormOut f = norm_forward(x, in.residual, in.gain, in.bias, kEps, in.bias.defined());
  const NormGrads g = norm_backward(in.dy, x, f.mean, f.rstd, in.gain, in.bias.defined(),
                                    in.residual_grad, leaf_rows, true);
  EXPECT_TRUE(norm_apply(x, in.gain, in.bias, f.mean, f.rstd).equal(f.y));
  return {x, f.y, g.dx, g.dgain_LD, g.dbias_LD};
}

TEST(Norm, EqualsAutograd) {
  for (const at::ScalarType dtype : testing::kDtypes)
    for (const Shape& s : kShapes)
      for (const bool layer_norm : {false, true}) {
        SCOPED_TRACE(::testing::Message() << s.L << "x" << s.leaf << "x" << s.D << " "
                                          << c10::toString(dtype) << layer_norm);
        if (layer_norm && s.D == 1) continue;  // its output is the bias: no scale to compare with
        const double bound = kBounds.of(dtype);
        const Inputs in = make(s, dtype, layer_norm);
        const Results r = run(in, s.leaf);
        EXPECT_TRUE(r.sum.equal(in.x.add(in.residual)));
        const at::Tensor x = leaf(r.sum), gain = leaf(in.gain);
        const at::Tensor bias = layer_norm ? leaf(in.bias) : at::Tensor();
        const at::Tensor y = reference(x, gain, bias);
        EXPECT_LT(relative(r.y, y.detach()), bound);
        y.mul(in.dy.to(at::kDouble)).sum().backward();
        EXPECT_LT(relative(r.dx, x.grad().add(in.residual_grad.to(at::kDouble))), bound);
        EXPECT_EQ(r.dgain.size(0), s.L);
        EXPECT_LT(relative(r.dgain.sum(0), gain.grad()), bound);
        if (layer_norm) {
          EXPECT_LT(relative(r.dbias.sum(0), bias.grad()), bound);
        }
      }
}

TEST(Norm, LeavesAreSummedApart) {
  const Inputs in = make({3, 7, 33}, at::kFloat, true);
  const Results whole = run(in, 7);
  for (std::int64_t i = 0; i < 3; ++i) {
    const auto cut = [&](const at::Tensor& x) { return x.narrow(0, 7 * i, 7); };
    const Results part =
        run({cut(in.x), cut(in.residual), in.gain, in.bias, cut(in.dy), cut(in.residual_grad)}, 7);
    EXPECT_TRUE(part.dgain[0].equal(whole.dgain[i]));
    EXPECT_TRUE(part.dbias[0].equal(whole.dbias[i]));
    EXPECT_TRUE(part.dx.equal(cut(whole.dx)));
    EXPECT_TRUE(part.y.equal(cut(whole.y)));
  }
}

TEST(Norm, ThreadsDoNotChangeBits) {
  for (const Shape& s : {Shape{1, 64, 384}, Shape{5, 20, 130}}) {
    const Inputs in = make(s, at::kFloat, true);
    testing::with_threads([&] { return run(in, s.leaf); },
                          [](const Results& a, const Results& b) {
                            EXPECT_TRUE(a.y.equal(b.y) && a.dx.equal(b.dx));
                            EXPECT_TRUE(a.dgain.equal(b.dgain) && a.dbias.equal(b.dbias));
                          });
  }
}

// A norm over each head's dims, on views into a fused qkv buffer.
TEST(Norm, TakesViewsOfHeads) {
  const at::Tensor fused = random({6, 5, 24}, at::kFloat);
  at::Tensor view = fused.narrow(1, 1, 3);
  at::Tensor copy = view.contiguous();
  const at::Tensor gain = random({24}, at::kFloat);
  const NormOut a = norm_forward(view, {}, gain, {}, kEps, false);
  const NormOut b = norm_forward(copy, {}, gain, {}, kEps, false);
  EXPECT_TRUE(a.y.equal(b.y) && a.rstd.equal(b.rstd));
  EXPECT_EQ(a.rstd.numel(), 18);
  const at::Tensor dy = random({6, 3, 24}, at::kFloat);
  const NormGrads ga = norm_backward(dy, view, {}, a.rstd, gain, false, {}, 9, true);
  const NormGrads gb = norm_backward(dy, copy, {}, b.rstd, gain, false, {}, 9, true);
  EXPECT_TRUE(ga.dx.equal(gb.dx) && ga.dgain_LD.equal(gb.dgain_LD));
}

TEST(Norm, FrozenGainHasNoSums) {
  const Inputs in = make({2, 3, 16}, at::kFloat, true);
  at::Tensor x = in.x.clone();
  const NormOut f = norm_forward(x, {}, in.gain, in.bias, kEps, true);
  EXPECT_TRUE(x.equal(in.x));
  const NormGrads g = norm_backward(in.dy, x, f.mean, f.rstd, in.gain, true, {}, 3, false);
  EXPECT_FALSE(g.dgain_LD.defined() || g.dbias_LD.defined());
  EXPECT_THROW(norm_backward(in.dy, x, f.mean, f.rstd, in.gain, true, {}, 4, true), BugError);
}

}  // namespace
}  // namespace quatrain::kernels
