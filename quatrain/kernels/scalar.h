// SPDX-License-Identifier: Apache-2.0
// Scalars for kernels: the wide type to compute in, bf16 loads and stores, and exp, log, tanh and
// sigmoid as straight-line code without branches or calls, so that loops over them vectorise and
// every lane, of body or tail, gives the bits of the scalar function. Kernels are compiled without
// floating-point contraction: a fused multiply-add is written as one.
#pragma once
#include <c10/util/BFloat16.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace quatrain::kernels {

template <class T>
struct WideOf {
  using type = float;
};
template <>
struct WideOf<double> {
  using type = double;
};
// float for float and bf16, double for double.
template <class T>
using Wide = typename WideOf<T>::type;

inline float load(float x) { return x; }
inline double load(double x) { return x; }
inline float load(c10::BFloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.x) << 16);
}

// Rounds to nearest even; NaN stays NaN.
template <class T>
inline T store(Wide<T> x) {
  return x;
}
template <>
inline c10::BFloat16 store<c10::BFloat16>(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40U;
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return {static_cast<std::uint16_t>(is_nan ? nan : rounded), c10::BFloat16::from_bits()};
}

inline float fused(float a, float b, float c) { return std::fma(a, b, c); }
inline double fused(double a, double b, double c) { return std::fma(a, b, c); }

// e^x: relative error below 1.2e-7 (float), 3e-16 (double). Overflows to infinity; subnormal results
// keep their leading bits. Cody-Waite reduction by ln 2 in two parts, Taylor polynomial on
// |r| <= ln 2 / 2.
inline float exp_(float x) {
  const float clipped = x < -104.0F ? -104.0F : (x > 89.0F ? 89.0F : x);
  const float n = __builtin_rintf(clipped * 1.44269504F);
  float r = fused(n, -0.693359375F, clipped);
  r = fused(n, 2.12194440e-4F, r);
  float p = 1.9875691500e-4F;
  p = fused(p, r, 1.3981999507e-3F);
  p = fused(p, r, 8.3334519073e-3F);
  p = fused(p, r, 4.1665795894e-2F);
  p = fused(p, r, 1.6666665459e-1F);
  p = fused(p, r, 5.0000001201e-1F);
  p = fused(p, r * r, r) + 1.0F;
  const auto whole = static_cast<std::int32_t>(n);
  const std::int32_t half = whole >> 1;  // 2^n in two factors: n reaches 128 and -150
  const float low = std::bit_cast<float>((half + 127) << 23);
  const float high = std::bit_cast<float>((whole - half + 127) << 23);
  return p * low * high;
}

inline double exp_(double x) {
  const double clipped = x < -746.0 ? -746.0 : (x > 710.0 ? 710.0 : x);
  const double n = __builtin_rint(clipped * 1.4426950408889634);
  double r = fused(n, -6.93147180369123816490e-01, clipped);
  r = fused(n, -1.90821492927058770002e-10, r);
  double p = 1.0 / 6227020800.0;  // 1/13!
  p = fused(p, r, 1.0 / 479001600.0);
  p = fused(p, r, 1.0 / 39916800.0);
  p = fused(p, r, 1.0 / 3628800.0);
  p = fused(p, r, 1.0 / 362880.0);
  p = fused(p, r, 1.0 / 40320.0);
  p = fused(p, r, 1.0 / 5040.0);
  p = fused(p, r, 1.0 / 720.0);
  p = fused(p, r, 1.0 / 120.0);
  p = fused(p, r, 1.0 / 24.0);
  p = fused(p, r, 1.0 / 6.0);
  p = fused(p, r, 0.5);
  p = fused(p, r * r, r) + 1.0;
  // The integer n from the bits of n + 1.5 * 2^52: a conversion that every vector unit has.
  const auto whole = std::bit_cast<std::int64_t>(n + 6755399441055744.0) - 0x4338000000000000LL;
  const std::int64_t half = (whole + (whole & 1)) / 2;
  const double low = std::bit_cast<double>((half + 1023) << 52);
  const double high = std::bit_cast<double>((whole - half + 1023) << 52);
  return p * low * high;
}

// 1 / (1 + e^-x).
template <class W>
inline W sigmoid_(W x) {
  return W(1) / (W(1) + exp_(-x));
}

// tanh by e^2|x|; small arguments by their odd Taylor series, so that no digits cancel.
template <class W>
inline W tanh_(W x) {
  const W a = x < W(0) ? -x : x;
  const W big = W(1) - W(2) / (exp_(W(2) * a) + W(1));
  const W s = a * a;
  W p = W(-929569.0 / 638512875.0);
  p = fused(p, s, W(21844.0 / 6081075.0));
  p = fused(p, s, W(-1382.0 / 155925.0));
  p = fused(p, s, W(62.0 / 2835.0));
  p = fused(p, s, W(-17.0 / 315.0));
  p = fused(p, s, W(2.0 / 15.0));
  p = fused(p, s, W(-1.0 / 3.0));
  const W small = fused(p * s, a, a);
  const W limit = sizeof(W) == 4 ? W(0.35) : W(0.1);
  const W y = a < limit ? small : big;
  return x < W(0) ? -y : y;
}

}  // namespace quatrain::kernels
