// SPDX-License-Identifier: Apache-2.0
// The product of few rows with a matrix, as each expert has one, on the calling thread. A library
// packs the whole matrix first, which few rows do not pay for (bench/kernels, experts). Here the
// rows are packed and a matrix [n, k] is read once as it lies; of a matrix [k, n], panels are
// copied while the first tile reads them. An element is one chain of fused multiply-adds over the
// inner dimension: its bits depend neither on the other rows nor on cuts.
#pragma once
#include <cstdint>

#include "quatrain/kernels/gemm.h"

namespace quatrain::kernels {

// Up to here it is the faster one, with AVX-512 and against oneDNN.
inline constexpr std::int64_t kFewRows = 128;

// out [m, n] = a op(b), a not transposed; m from 1 to kFewRows, k 1 or more. Counts no FLOPs. Each
// thread keeps packed rows, no tensor: 512 KiB, or 128 k bytes where that is more, and a little.
void few_rows_product(GemmSize size, GemmOperand<float> a, GemmOperand<float> b, float* out,
                      std::int64_t out_stride);

}  // namespace quatrain::kernels
