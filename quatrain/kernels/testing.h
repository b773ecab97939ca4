// SPDX-License-Identifier: Apache-2.0
// What the tests of kernels/ share. Not for other code. at::zeros is in the precompiled header.
#pragma once
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <limits>

namespace quatrain::kernels::testing {

// max|a - b| / max|b| in float64; infinity when a holds a NaN.
inline double relative(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  if (x.isnan().any().item<bool>()) return std::numeric_limits<double>::infinity();
  const double size = y.abs().max().item<double>();
  const double error = x.sub(y).abs().max().item<double>();
  return size == 0.0 ? error : error / size;
}

inline at::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::Tensor(at::zeros(sizes, at::kDouble)).normal_().to(dtype);
}
inline at::Tensor poisoned_like(const at::Tensor& x) {
  return x.new_full(x.sizes(), std::numeric_limits<double>::quiet_NaN());
}
// A float64 copy that autograd follows.
inline at::Tensor leaf(const at::Tensor& x) { return x.to(at::kDouble).clone().requires_grad_(); }

inline constexpr std::initializer_list<at::ScalarType> kDtypes = {at::kDouble, at::kFloat,
                                                                  at::kBFloat16};
// A bound on `relative` by dtype.
struct Bounds {
  double f64, f32, bf16;
  double of(at::ScalarType dtype) const {
    return dtype == at::kDouble ? f64 : (dtype == at::kFloat ? f32 : bf16);
  }
};

// Runs f() with one compute thread, then with 2 and 4; check(first, other) compares.
template <typename F, typename Check>
void with_threads(const F& f, const Check& check) {
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const auto one = f();
  for (const int threads : {2, 4}) {
    at::set_num_threads(threads);
    check(one, f());
  }
  at::set_num_threads(before);
}

}  // namespace quatrain::kernels::testing
