// SPDX-License-Identifier: Apache-2.0
// One element: the wide type to compute in, bf16 loads and stores. Files whose loops the compiler
// vectorises are compiled without floating-point contraction, so that tails give the bits of
// bodies: a fused multiply-add is written as one.
#pragma once
#include <c10/util/BFloat16.h>

#include <bit>
#include <cmath>
#include <cstdint>

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

}  // namespace quatrain::kernels
