// SPDX-License-Identifier: Apache-2.0
// The door to every GEMM: checks, counts, and cuts one product into a piece a thread. Pieces are
// whole in the inner dimension, so the cut changes no sum.
#include "quatrain/kernels/matmul.h"

#include <ATen/ops/empty.h>

#include <algorithm>

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

template <class T>
void cut_over_team(GemmSize size, GemmOperand<T> a, GemmOperand<T> b, T beta, T* out,
                   std::int64_t out_stride) {
  const std::int64_t threads = num_threads();
  const bool by_rows = size.m >= size.n || size.n < threads * kMinColumns;
  const std::int64_t length = by_rows ? size.m : size.n;
  const std::int64_t unit = by_rows ? kMinRows : kMinColumns;
  const std::int64_t units = std::max<std::int64_t>(length / unit, 1);
  const std::int64_t pieces = std::min(units, threads);
  const auto cut = [&](std::int64_t piece) {
    return piece == pieces ? length : units * piece / pieces * unit;
  };
  parallel_pieces(static_cast<int>(pieces), [&](int piece) {
    const std::int64_t begin = cut(piece);
    const std::int64_t count = cut(piece + 1) - begin;
    if (by_rows) {
      gemm<T>({count, size.n, size.k}, T(1), skip(a, begin, true), b, beta,
              out + begin * out_stride, out_stride);
    } else {
      gemm<T>({size.m, count, size.k}, T(1), a, skip(b, begin, false), beta, out + begin,
              out_stride);
    }
  });
}

void run(const at::Tensor& out, const Operand& a, const Operand& b, GemmSize size, bool add) {
  if (size.m == 0 || size.n == 0) return;
  if (size.k == 0) {
    if (!add) out.zero_();
    return;
  }
  if (out.scalar_type() == at::kDouble) {
    cut_over_team<double>(size, raw<double>(a), raw<double>(b), add ? 1.0 : 0.0,
                          mutable_data<double>(out), out.stride(0));
  } else {
    cut_over_team<float>(size, raw<float>(a), raw<float>(b), add ? 1.0F : 0.0F,
                         mutable_data<float>(out), out.stride(0));
  }
}

}  // namespace

at::Tensor matmul(Operand a, Operand b, Inner inner) {
  at::Tensor out = at::empty({rows(a), columns(b)}, a.matrix.options());
  matmul_out(out, a, b, inner);
  return out;
}

void matmul_out(at::Tensor& out, Operand a, Operand b, Inner) {
  const GemmSize size = checked_size(a, b);
  check_out(out, size, a.matrix.scalar_type());
  count_flops(2 * size.m * size.n * size.k);
  if (out.scalar_type() == at::kBFloat16) {
    const at::Tensor wide_a = a.matrix.to(at::kFloat);
    const at::Tensor wide_b = b.matrix.to(at::kFloat);
    const at::Tensor sum = at::empty({size.m, size.n}, out.options().dtype(at::kFloat));
    run(sum, {wide_a, a.transposed}, {wide_b, b.transposed}, size, false);
    out.copy_(sum);
    return;
  }
  run(out, a, b, size, false);
}

void matmul_add(at::Tensor& out, Operand a, Operand b, Inner) {
  const GemmSize size = checked_size(a, b);
  check_out(out, size, wide(a.matrix.scalar_type()));
  count_flops(2 * size.m * size.n * size.k);
  if (a.matrix.scalar_type() == at::kBFloat16) {
    const at::Tensor wide_a = a.matrix.to(at::kFloat);
    const at::Tensor wide_b = b.matrix.to(at::kFloat);
    run(out, {wide_a, a.transposed}, {wide_b, b.transposed}, size, true);
    return;
  }
  run(out, a, b, size, true);
}

}  // namespace quatrain::kernels
