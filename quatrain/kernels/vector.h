// SPDX-License-Identifier: Apache-2.0
// One register of floats or doubles with GCC's vector extension, and the functions that the kernels
// need on it. A tail is loaded into a whole register, zeros behind it, and runs the body's code: an
// element's bits never depend on its place. bf16 is widened on load and rounded once on store.
#pragma once
#include <c10/util/BFloat16.h>
#if defined(__FMA__)
#include <immintrin.h>
#endif

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "quatrain/kernels/scalar.h"

namespace quatrain::kernels::simd {

#if defined(__AVX512F__)
inline constexpr int kBytes = 64;
#else
inline constexpr int kBytes = 32;
#endif

template <typename T, int Lanes>
struct VectorOf {
  typedef T type __attribute__((vector_size(sizeof(T) * Lanes)));
};
template <typename T>
inline constexpr int kLanes = kBytes / static_cast<int>(sizeof(T));
template <typename T>
using Vec = typename VectorOf<T, kLanes<T>>::type;
template <typename T>
using IntOf = std::conditional_t<std::is_same_v<T, double>, std::int64_t, std::int32_t>;
template <typename T>
using IntVec = typename VectorOf<IntOf<T>, kLanes<T>>::type;

inline constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

template <typename T>
inline Vec<T> splat(T x) {
  return x - Vec<T>{};  // a plain broadcast: x - 0 is x, also for x = -0
}
template <typename T>
inline Vec<T> load(const T* p) {
  Vec<T> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <typename T>
inline void store(T* p, Vec<T> v) {
  std::memcpy(p, &v, sizeof v);
}

// a * b + c, rounded once. Written out, since kernels are compiled without contraction.
#if defined(__AVX512F__)
inline Vec<float> fused(Vec<float> a, Vec<float> b, Vec<float> c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline Vec<double> fused(Vec<double> a, Vec<double> b, Vec<double> c) {
  return _mm512_fmadd_pd(a, b, c);
}
#elif defined(__FMA__)
inline Vec<float> fused(Vec<float> a, Vec<float> b, Vec<float> c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline Vec<double> fused(Vec<double> a, Vec<double> b, Vec<double> c) {
  return _mm256_fmadd_pd(a, b, c);
}
#else
template <typename V>
inline V fused(V a, V b, V c) {
  V y;
  for (unsigned i = 0; i < sizeof(V) / sizeof(y[0]); ++i) y[i] = std::fma(a[i], b[i], c[i]);
  return y;
}
#endif

using Half16 = typename VectorOf<std::uint16_t, kLanes<float>>::type;
using Word32 = typename VectorOf<std::uint32_t, kLanes<float>>::type;

inline Vec<float> load(const c10::BFloat16* p) {
  Half16 half;
  std::memcpy(&half, p, sizeof half);
  return std::bit_cast<Vec<float>>(__builtin_convertvector(half, Word32) << 16);
}
// Nearest, ties to even; a NaN stays one.
inline Half16 round_to_bf16(Vec<float> v) {
  const auto bits = std::bit_cast<Word32>(v);
  const Word32 rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const auto nan = std::bit_cast<Word32>(v != v);
  return __builtin_convertvector(((rounded & ~nan) | (nan & 0x7fc00000u)) >> 16, Half16);
}
inline void store(c10::BFloat16* p, Vec<float> v) {
  const Half16 half = round_to_bf16(v);
  std::memcpy(p, &half, sizeof half);
}

// The first n < lanes elements; the rest of the register is zero.
template <typename S>
inline Vec<Wide<S>> load_part(const S* p, std::int64_t n) {
  alignas(64) S padded[kLanes<Wide<S>>] = {};
  std::memcpy(static_cast<void*>(padded), p, static_cast<std::size_t>(n) * sizeof(S));
  return load(static_cast<const S*>(padded));
}
template <typename S>
inline void store_part(S* p, Vec<Wide<S>> v, std::int64_t n) {
  alignas(64) S padded[kLanes<Wide<S>>];
  store(static_cast<S*>(padded), v);
  std::memcpy(static_cast<void*>(p), padded, static_cast<std::size_t>(n) * sizeof(S));
}

// How a loop over elements touches its registers: all of one, or the last one's first n lanes.
struct WholeVector {
  template <typename S>
  Vec<Wide<S>> load(const S* p) const {
    return simd::load(p);
  }
  template <typename S>
  void store(S* p, Vec<Wide<S>> v) const {
    simd::store(p, v);
  }
  template <typename T>
  Vec<T> zero_behind(Vec<T> v) const {
    return v;
  }
};
struct PartVector {
  std::int64_t n;

  template <typename S>
  Vec<Wide<S>> load(const S* p) const {
    return load_part(p, n);
  }
  template <typename S>
  void store(S* p, Vec<Wide<S>> v) const {
    store_part(p, v, n);
  }
  template <typename T>
  Vec<T> zero_behind(Vec<T> v) const {
    T lanes[kLanes<T>];
    simd::store(static_cast<T*>(lanes), v);
    return load_part(static_cast<const T*>(lanes), n);
  }
};

// body(i, io) for the registers that begin at elements i of [0, n); io loads and stores what
// exists.
template <typename T, typename Body>
inline void for_each_vector(std::int64_t n, Body&& body) {
  constexpr std::int64_t lanes = kLanes<T>;
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body(i, WholeVector{});
  if (i < n) body(i, PartVector{n - i});
}

template <typename V>
inline V max(V a, V b) {
  return a > b ? a : b;
}
template <typename V>
inline V min(V a, V b) {
  return a < b ? a : b;
}

// Sum of the lanes, in the order of a fixed tree.
template <typename T>
inline T sum_lanes(Vec<T> v) {
  T x[kLanes<T>];
  std::memcpy(x, &v, sizeof v);
  for (int half = kLanes<T> / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x[i] += x[i + half];
  return x[0];
}

// e^x for x up to 88 (float) or 709 (double); 0 below the smallest normal result. Cody and Waite's
// reduction x = n ln 2 + r, then the Taylor polynomial of r in [-0.35, 0.35] to the last place.
template <typename T>
inline Vec<T> exp(Vec<T> x) {
  constexpr bool is_double = std::is_same_v<T, double>;
  constexpr T lowest = is_double ? T(-708.0) : T(-87.0);
  constexpr T magic = is_double ? T(6755399441055744.0) : T(12582912.0);  // 1.5 * 2^mantissa
  constexpr T ln2_high = is_double ? T(6.93147180369123816490e-01) : T(0.693359375);
  constexpr T ln2_low = is_double ? T(1.90821492927058770002e-10) : T(-2.12194440e-4);
  constexpr int mantissa_bits = is_double ? 52 : 23;
  constexpr int degree = is_double ? 13 : 7;
  const Vec<T> clamped = max(x, splat(lowest));
  const Vec<T> shifted = fused(clamped, splat(T(1.44269504088896340736)), splat(magic));
  const Vec<T> n = shifted - magic;
  const Vec<T> r = fused(n, splat(-ln2_low), fused(n, splat(-ln2_high), clamped));
  T inverse_factorial = 1;
  for (int i = 2; i <= degree; ++i) inverse_factorial /= T(i);
  Vec<T> y = splat(inverse_factorial);
#pragma GCC unroll 16
  for (int i = degree; i > 0; --i) {
    inverse_factorial *= T(i);
    y = fused(y, r, splat(inverse_factorial));
  }
  const auto exponent = std::bit_cast<IntVec<T>>(shifted) << mantissa_bits;
  const auto scaled = std::bit_cast<Vec<T>>(std::bit_cast<IntVec<T>>(y) + exponent);
  return x < splat(lowest) ? Vec<T>{} : (x == x ? scaled : x);
}

// e^-x for x from -87 (float) or -700 (double) up; below, the value at that end.
template <typename T>
inline Vec<T> exp_of_minus(Vec<T> x) {
  constexpr T limit = std::is_same_v<T, double> ? T(700.0) : T(87.0);
  return exp<T>(min(-x, splat(limit)));
}

// Lanes of a and b in turn, beginning at lane `first`.
template <typename T, int first, int... i>
inline Vec<T> interleave(Vec<T> a, Vec<T> b, std::integer_sequence<int, i...>) {
  return __builtin_shuffle(a, b, IntVec<T>{(first + i / 2 + (i % 2) * kLanes<T>)...});
}
// Transposes a square of registers: rows become columns (a perfect shuffle, log2(lanes) times).
template <typename T>
inline void transpose(Vec<T> (&row)[kLanes<T>]) {
  constexpr int lanes = kLanes<T>;
  constexpr std::make_integer_sequence<int, lanes> order;
  for (int step = 1; step < lanes; step *= 2) {
    Vec<T> next[lanes];
#pragma GCC unroll 8
    for (int i = 0; i < lanes / 2; ++i) {
      next[2 * i] = interleave<T, 0>(row[i], row[i + lanes / 2], order);
      next[2 * i + 1] = interleave<T, lanes / 2>(row[i], row[i + lanes / 2], order);
    }
    std::memcpy(&row, &next, sizeof next);
  }
}

}  // namespace quatrain::kernels::simd
