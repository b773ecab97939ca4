// SPDX-License-Identifier: Apache-2.0
// Products of small blocks that lie in cache, for attention: a register tile of C, one chain of
// fused multiply-adds over the inner dimension for every element, from zero or from C. So an
// element's bits do not depend on the tiling, and terms that are zero may be left out.
// C [m, n] = A [m, k] B [k, n]: A is read element by element with any two strides; rows of B and C
// are contiguous and padded to whole registers.
#pragma once
#include <algorithm>
#include <cstdint>

#include "quatrain/kernels/vector.h"

namespace quatrain::kernels::simd {

#if defined(__AVX512F__)
inline constexpr std::int64_t kTileRows = 8;  // x 2 registers: 16 of 32 hold sums
#else
inline constexpr std::int64_t kTileRows = 6;  // x 2 registers: 12 of 16 hold sums
#endif

template <typename T>
struct LeftBlock {
  const T* data;
  std::int64_t row_stride;
  std::int64_t inner_stride;
};
template <typename T>
struct RowBlock {
  T* data;
  std::int64_t row_stride;
};
struct Span {
  std::int64_t begin, end;
};

template <typename T, int kRows, int kVectors>
inline void tile_product(const LeftBlock<T>& a, const T* b, std::int64_t b_stride, T* c,
                         std::int64_t c_stride, std::int64_t inner, bool add) {
  Vec<T> sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v)
      sum[r][v] = add ? load(c + r * c_stride + v * kLanes<T>) : Vec<T>{};
  const T* left = a.data;
  for (std::int64_t k = 0; k < inner; ++k, left += a.inner_stride, b += b_stride) {
    Vec<T> right[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) right[v] = load(b + v * kLanes<T>);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] = fused(splat(left[r * a.row_stride]), right[v], sum[r][v]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) store(c + r * c_stride + v * kLanes<T>, sum[r][v]);
}

template <typename T, int kRows>
inline void strip_product(const LeftBlock<T>& a, const RowBlock<const T>& b, const RowBlock<T>& c,
                          Span columns, Span inner, bool add) {
  constexpr std::int64_t lanes = kLanes<T>;
  const LeftBlock<T> left{a.data + inner.begin * a.inner_stride, a.row_stride, a.inner_stride};
  const T* right = b.data + inner.begin * b.row_stride;
  const std::int64_t depth = inner.end - inner.begin;
  std::int64_t n = columns.begin;
  for (; n + 2 * lanes <= columns.end; n += 2 * lanes)
    tile_product<T, kRows, 2>(left, right + n, b.row_stride, c.data + n, c.row_stride, depth, add);
  if (n < columns.end)
    tile_product<T, kRows, 1>(left, right + n, b.row_stride, c.data + n, c.row_stride, depth, add);
}

// `rows` <= kTileRows rows of C: columns [begin, end), multiples of the lanes, over `inner`.
// add: += ; otherwise =.
template <typename T>
inline void strip(std::int64_t rows, const LeftBlock<T>& a, const RowBlock<const T>& b,
                  const RowBlock<T>& c, Span columns, Span inner, bool add) {
  switch (rows) {
    case 1:
      return strip_product<T, 1>(a, b, c, columns, inner, add);
    case 2:
      return strip_product<T, 2>(a, b, c, columns, inner, add);
    case 3:
      return strip_product<T, 3>(a, b, c, columns, inner, add);
    case 4:
      return strip_product<T, 4>(a, b, c, columns, inner, add);
    case 5:
      return strip_product<T, 5>(a, b, c, columns, inner, add);
    case 6:
      return strip_product<T, 6>(a, b, c, columns, inner, add);
    case 7:
      return strip_product<T, 7>(a, b, c, columns, inner, add);
    default:
      return strip_product<T, 8>(a, b, c, columns, inner, add);
  }
}

// All m rows; bounds(first_row, last_row) gives {columns, inner} of each strip of rows.
template <typename T, typename Bounds>
inline void product(std::int64_t m, const LeftBlock<T>& a, const RowBlock<const T>& b,
                    const RowBlock<T>& c, bool add, Bounds&& bounds) {
  for (std::int64_t r = 0; r < m; r += kTileRows) {
    const std::int64_t rows = std::min(kTileRows, m - r);
    const auto [columns, inner] = bounds(r, r + rows - 1);
    if (columns.begin >= columns.end || (add && inner.begin >= inner.end)) continue;
    strip<T>(rows, {a.data + r * a.row_stride, a.row_stride, a.inner_stride}, b,
             {c.data + r * c.row_stride, c.row_stride}, columns, inner, add);
  }
}

}  // namespace quatrain::kernels::simd
