// SPDX-License-Identifier: Apache-2.0
// The door to every GEMM: checks, counts, and cuts one product into a piece a thread. Pieces are
// whole in the inner dimension, so the cut changes no sum.
#include "quatrain/kernels/matmul.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <atomic>
#include <type_traits>

#include "quatrain/kernels/check.h"
#include "quatrain/kernels/dispatch.h"
#include "quatrain/kernels/flops.h"
#include "quatrain/kernels/gemm.h"
#include "quatrain/kernels/parallel.h"

namespace quatrain::kernels {
namespace {

// A piece smaller than this takes other code paths in the BLAS, with other bits.
constexpr std::int64_t kMinRows = 4;
constexpr std::int64_t kMinColumns = 16;

std::int64_t rows(const Operand& a) { return a.matrix.size(a.transposed ? 1 : 0); }
std::int64_t columns(const Operand& a) { return a.matrix.size(a.transposed ? 0 : 1); }

GemmSize checked_size(const Operand& a, const Operand& b) {
  for (const Operand* operand : {&a, &b}) {
    const at::Tensor& x = operand->matrix;
    CHECK(x.dim() == 2, "a GEMM operand has {} dims", x.dim());
    CHECK(x.size(1) <= 1 || x.stride(1) == 1, "a GEMM operand's last dim has stride {}",
          x.stride(1));
  }
  CHECK(a.matrix.scalar_type() == b.matrix.scalar_type(), "GEMM of {} with {}",
        c10::toString(a.matrix.scalar_type()), c10::toString(b.matrix.scalar_type()));
  CHECK(columns(a) == rows(b), "inner dimensions {} and {}", columns(a), rows(b));
  return {rows(a), columns(b), columns(a)};
}

void check_out(const at::Tensor& out, GemmSize size, at::ScalarType dtype) {
  CHECK(out.dim() == 2 && out.size(0) == size.m && out.size(1) == size.n,
        "a GEMM's output is not [{}, {}]", size.m, size.n);
  CHECK(out.size(1) <= 1 || out.stride(1) == 1, "a GEMM's output has a strided last dim");
  CHECK(out.scalar_type() == dtype, "a GEMM's output is {}, not {}",
        c10::toString(out.scalar_type()), c10::toString(dtype));
}

template <class T>
GemmOperand<T> raw(const Operand& x) {
  return {data<T>(x.matrix), x.matrix.stride(0), x.transposed};
}

// The piece of rows [begin, ...) of op(a), or columns of op(b).
template <class T>
GemmOperand<T> skip(GemmOperand<T> x, std::int64_t count, bool along_rows) {
  x.start += along_rows == x.transposed ? count : count * x.stride;
  return x;
}

// Calls product(size, a, b, out) on a piece a thread: rows where there are more of them than
// columns, else columns.
template <class In, class Out, class Product>
void cut_over_team(GemmSize size, GemmOperand<In> a, GemmOperand<In> b, const at::Tensor& out,
                   const Product& product) {
  const std::int64_t threads = num_threads();
  const bool by_rows = size.m >= size.n || size.n < threads * kMinColumns;
  const std::int64_t length = by_rows ? size.m : size.n;
  const std::int64_t unit = by_rows ? kMinRows : kMinColumns;
  const std::int64_t units = std::max<std::int64_t>(length / unit, 1);
  const std::int64_t pieces = std::min(units, threads);
  const auto cut = [&](std::int64_t piece) {
    return piece == pieces ? length : units * piece / pieces * unit;
  };
  Out* const start = mutable_data<Out>(out);
  const std::int64_t stride = out.stride(0);
  parallel_pieces(static_cast<int>(pieces), [&](int piece) {
    const std::int64_t begin = cut(piece);
    const std::int64_t count = cut(piece + 1) - begin;
    if (by_rows) {
      product({count, size.n, size.k}, skip(a, begin, true), b, start + begin * stride);
    } else {
      product({size.m, count, size.k}, a, skip(b, begin, false), start + begin);
    }
  });
}

// out (+)= op(a) op(b), of T's operands into T.
template <class T>
void run_as(const at::Tensor& out, const Operand& a, const Operand& b, GemmSize size, bool add) {
  const std::int64_t stride = out.stride(0);
  const T beta = add ? T(1) : T(0);
  if constexpr (std::is_same_v<T, float>) {
    if (gemm_has_team(size, raw<T>(a), raw<T>(b))) {
      gemm<T>(size, T(1), raw<T>(a), raw<T>(b), beta, mutable_data<T>(out), stride);
      return;
    }
  }
  cut_over_team<T, T>(size, raw<T>(a), raw<T>(b), out,
                      [=](GemmSize piece, GemmOperand<T> left, GemmOperand<T> right, T* to) {
                        gemm<T>(piece, T(1), left, right, beta, to, stride);
                      });
}

std::atomic<bool> always_widen{false};

// Whether the CPU multiplies bf16 by itself; elsewhere ATen's bf16 products are 3 to 60 times
// slower than float32's, and the operands are widened.
bool has_bf16_units() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512bf16") != 0;
  return has;
#else
  return false;
#endif
}

// True when there is nothing to multiply: the output is then already right.
bool trivial(const at::Tensor& out, GemmSize size, bool add) {
  if (size.m == 0 || size.n == 0) return true;
  if (size.k == 0 && !add) out.zero_();
  return size.k == 0;
}

void run(const at::Tensor& out, const Operand& a, const Operand& b, GemmSize size, bool add) {
  if (out.scalar_type() == at::kDouble) {
    run_as<double>(out, a, b, size, add);
  } else {
    run_as<float>(out, a, b, size, add);
  }
}

void run_widened(const at::Tensor& out, const Operand& a, const Operand& b, GemmSize size,
                 bool add) {
  const at::Tensor wide_a = a.matrix.to(at::kFloat);
  const at::Tensor wide_b = b.matrix.to(at::kFloat);
  run(out, {wide_a, a.transposed}, {wide_b, b.transposed}, size, add);
}

void add_bf16_product(const at::Tensor& out, const Operand& a, const Operand& b, GemmSize size) {
  using In = GemmOperand<c10::BFloat16>;
  const std::int64_t stride = out.stride(0);
  cut_over_team<c10::BFloat16, float>(size, raw<c10::BFloat16>(a), raw<c10::BFloat16>(b), out,
                                      [=](GemmSize piece, In left, In right, float* to) {
                                        gemm_bf16(piece, 1.0F, left, right, 1.0F, to, stride);
                                      });
}

at::Tensor view(const Operand& x) { return x.transposed ? x.matrix.t() : x.matrix; }

}  // namespace

void widen_bf16_products(bool always) { always_widen = always; }

at::Tensor matmul(Operand a, Operand b, Inner inner) {
  at::Tensor out = at::empty({rows(a), columns(b)}, a.matrix.options());
  matmul_out(out, a, b, inner);
  return out;
}

void matmul_out(at::Tensor& out, Operand a, Operand b, Inner) {
  const GemmSize size = checked_size(a, b);
  check_out(out, size, a.matrix.scalar_type());
  count_flops(2 * size.m * size.n * size.k);
  if (trivial(out, size, false)) return;
  if (out.scalar_type() != at::kBFloat16) {
    run(out, a, b, size, false);
  } else if (has_bf16_units() && !always_widen) {
    at::mm_out(out, view(a), view(b));
  } else {
    const at::Tensor sum = at::empty({size.m, size.n}, out.options().dtype(at::kFloat));
    run_widened(sum, a, b, size, false);
    out.copy_(sum);
  }
}

void matmul_add(at::Tensor& out, Operand a, Operand b, Inner) {
  const GemmSize size = checked_size(a, b);
  check_out(out, size, wide(a.matrix.scalar_type()));
  count_flops(2 * size.m * size.n * size.k);
  if (trivial(out, size, true)) return;
  if (a.matrix.scalar_type() != at::kBFloat16) {
    run(out, a, b, size, true);
  } else if (has_gemm_bf16() && !always_widen) {
    add_bf16_product(out, a, b, size);
  } else {
    run_widened(out, a, b, size, true);
  }
}

}  // namespace quatrain::kernels
