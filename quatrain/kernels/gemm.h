// SPDX-License-Identifier: Apache-2.0
// One matrix product on raw pointers, for kernels that fan out themselves (attention) and for
// matmul.cc. Counts no FLOPs. Row-major.
#pragma once
#include <c10/util/BFloat16.h>

#include <cstdint>

namespace quatrain::kernels {

// A matrix in memory: `stride` elements from row to row, as stored (before any transposition).
template <class T>
struct GemmOperand {
  const T* start;
  std::int64_t stride;
  bool transposed = false;
};
struct GemmSize {
  std::int64_t m, n, k;
};

// Whether gemm() of float32 spreads this product over the threads of its caller (one inside a team)
// better than pieces of it would do; any other is to be cut.
bool gemm_has_team(GemmSize size, GemmOperand<float> a, GemmOperand<float> b);

// out [m, n] = alpha op(a) op(b) + beta out. T: float or double. beta = 0 does not read out.
template <class T>
void gemm(GemmSize size, T alpha, GemmOperand<T> a, GemmOperand<T> b, T beta, T* out,
          std::int64_t out_stride);

// The same of bf16 operands into float32. Only where has_gemm_bf16(): a BLAS that has such a
// product and a CPU on which it is faster than float32's.
void gemm_bf16(GemmSize size, float alpha, GemmOperand<c10::BFloat16> a,
               GemmOperand<c10::BFloat16> b, float beta, float* out, std::int64_t out_stride);
bool has_gemm_bf16();

}  // namespace quatrain::kernels
