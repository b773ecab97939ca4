// SPDX-License-Identifier: Apache-2.0
// The only door to a GEMM (check_layers keeps mm, addmm, bmm, matmul, linear out of nn/). Behind
// it: a library that spreads the product over this rank's compute threads itself where that is the
// fastest (gemm.h); else the product cut by rows or columns, a single-threaded BLAS call a piece
// (two such halves reach 145-150 GFLOP/s where the BLAS's own split of one reaches 105-120).
//
// dtypes: float32 and float64 as they are; bf16 operands accumulate in float32 and round once.
// Counts 2 m n k FLOPs into the thread's FlopCounter.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace quatrain::kernels {

// Whether ranks hold pieces of the inner dimension: then an exact mode must cut it at fixed leaves.
enum class Inner : std::uint8_t { kWhole, kOverRanks };

struct Operand {
  const at::Tensor& matrix;  // 2-D; the last dim has stride 1 (rows may be padded)
  bool transposed = false;
};
// Shorthand: matmul(n(x), t(w)) is x w^T.
inline Operand n(const at::Tensor& m) { return {m, false}; }
inline Operand t(const at::Tensor& m) { return {m, true}; }

// Returns op(a) op(b), [M, N], in the operands' dtype.
at::Tensor matmul(Operand a, Operand b, Inner inner = Inner::kWhole);
// out = op(a) op(b); out [M, N], rows may be padded, dtype of the operands.
void matmul_out(at::Tensor& out, Operand a, Operand b, Inner inner = Inner::kWhole);
// out += op(a) op(b); out is wide(dtype): weight gradients of bf16 operands go into float32.
void matmul_add(at::Tensor& out, Operand a, Operand b, Inner inner = Inner::kWhole);

// For tests and benchmarks, before other threads multiply: true computes bf16 products as a CPU
// without bf16 units does, from widened operands, rounded once.
void widen_bf16_products(bool always);

}  // namespace quatrain::kernels
