// SPDX-License-Identifier: Apache-2.0
// Rows packed as columns in whole registers, for products that run along them.
#pragma once
#include <algorithm>
#include <cstdint>

#include "quatrain/kernels/vector.h"

namespace quatrain::kernels {

// out [columns, qp] = factor * the transpose of x [rows, columns]; qp = rows in whole registers,
// zeros behind `rows`. `out` has room for `columns` in whole registers.
template <typename T, typename S>
void pack_transposed(const S* x, std::int64_t row_stride, std::int64_t rows, std::int64_t columns,
                     T factor, T* out) {
  constexpr std::int64_t lanes = simd::kLanes<T>;
  const std::int64_t qp = simd::round_up(rows, lanes);
  for (std::int64_t r = 0; r < rows; r += lanes)
    simd::for_each_vector<T>(columns, [&](std::int64_t c, const auto& io) {
      simd::Vec<T> square[lanes] = {};
      for (std::int64_t i = 0; i < std::min(lanes, rows - r); ++i)
        square[i] = io.load(x + (r + i) * row_stride + c) * factor;
      simd::transpose<T>(square);
      for (std::int64_t i = 0; i < lanes; ++i) simd::store(out + (c + i) * qp + r, square[i]);
    });
}

}  // namespace quatrain::kernels
