// SPDX-License-Identifier: Apache-2.0
// The product of few rows with a matrix, as each expert has one, on the calling thread. A library
// packs the matrix first, which with few rows costs a fifth of the product (bench/kernels,
// experts); here the rows are packed, and the matrix is read once as it lies. An element is one
// chain of fused multiply-adds over the inner dimension: its bits depend neither on the other rows
// nor on cuts.
#pragma once
#include <cstdint>

#include "quatrain/kernels/gemm.h"

namespace quatrain::kernels {

// Up to here it is the faster one.
inline constexpr std::int64_t kFewRows = 128;

// out [m, n] = a op(b), a not transposed; m <= kFewRows. Counts no FLOPs.
void few_rows_product(GemmSize size, GemmOperand<float> a, GemmOperand<float> b, float* out,
                      std::int64_t out_stride);

}  // namespace quatrain::kernels
