// SPDX-License-Identifier: Apache-2.0
// gemm.h over the BLAS that the torch library exports (Fortran interface, column-major: the
// row-major product is the transposed one with operands exchanged), or over its oneDNN where that
// is faster.
#include "quatrain/kernels/gemm.h"

#include <ATen/Context.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "quatrain/base/check.h"

extern "C" {
void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
            const float* beta, float* c, const int* ldc);
void dgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k,
            const double* alpha, const double* a, const int* lda, const double* b, const int* ldb,
            const double* beta, double* c, const int* ldc);
// Intel's alone; null in builds of torch over another BLAS. The integers are CBLAS's enumerations.
[[gnu::weak]] void cblas_gemm_bf16bf16f32(int layout, int transa, int transb, int m, int n, int k,
                                          float alpha, const std::uint16_t* a, int lda,
                                          const std::uint16_t* b, int ldb, float beta, float* c,
                                          int ldc);
}

// ATen's own call of oneDNN, exported but in no installed header: result = alpha a b + beta result,
// of any strides. Null in builds of torch that leave it out.
namespace at::native {
[[gnu::weak]] void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta,
                                 float alpha);
}

namespace quatrain::kernels {
namespace {

constexpr int kColumnMajor = 102;
constexpr int kNotTransposed = 111;
constexpr int kTransposed = 112;

int blas_int(std::int64_t x) {
  CHECK(x <= 2147483647, "a GEMM dimension of {} exceeds the BLAS's 32-bit integers", x);
  return static_cast<int>(x);
}

// What the column-major interface takes.
struct ColumnMajor {
  int m, n, k, lda, ldb, ldc;
};

template <class T>
ColumnMajor column_major(GemmSize size, GemmOperand<T> a, GemmOperand<T> b,
                         std::int64_t out_stride) {
  const auto leading = [](std::int64_t stride, std::int64_t width) {
    return blas_int(std::max<std::int64_t>({stride, width, 1}));  // one row may have any stride
  };
  return {blas_int(size.n),
          blas_int(size.m),
          blas_int(size.k),
          leading(b.stride, b.transposed ? size.k : size.n),
          leading(a.stride, a.transposed ? size.m : size.k),
          leading(out_stride, size.n)};
}

template <class T, class Blas>
void call(Blas blas, GemmSize size, T alpha, GemmOperand<T> a, GemmOperand<T> b, T beta, T* out,
          std::int64_t out_stride) {
  const ColumnMajor c = column_major(size, a, b, out_stride);
  const char* const first = b.transposed ? "T" : "N";
  const char* const second = a.transposed ? "T" : "N";
  blas(first, second, &c.m, &c.n, &c.k, &alpha, b.start, &c.lda, a.start, &c.ldb, &beta, out,
       &c.ldc);
}

// MKL gives AVX-512 to Intel's processors alone; on others oneDNN is twice as fast (bench/kernels).
bool has_faster_onednn() {
#if defined(__x86_64__)
  static const bool has = at::native::mkldnn_matmul != nullptr && at::hasMKLDNN() &&
                          __builtin_cpu_is("intel") == 0 && __builtin_cpu_supports("avx512f") != 0;
  return has;
#else
  return false;
#endif
}

// Rows without a gap between them: of others ATen makes a copy first.
bool dense(GemmOperand<float> x, std::int64_t rows, std::int64_t columns) {
  return x.stride == (x.transposed ? rows : columns);
}

// A view, [rows, columns] after the transposition.
at::Tensor view(GemmOperand<float> x, std::int64_t rows, std::int64_t columns) {
  const std::int64_t along = x.transposed ? 1 : x.stride, across = x.transposed ? x.stride : 1;
  return at::from_blob(const_cast<float*>(x.start), {rows, columns}, {along, across});
}

void onednn(GemmSize size, float alpha, GemmOperand<float> a, GemmOperand<float> b, float beta,
            float* out, std::int64_t out_stride) {
  at::native::mkldnn_matmul(view(a, size.m, size.k), view(b, size.k, size.n),
                            view({out, out_stride}, size.m, size.n), beta, alpha);
}

// oneDNN compiles a kernel for each size it meets, in 0.3 ms and up to a MiB that it keeps. Where
// tokens are counted, which an expert's are by the router, sizes differ with every call: they are
// made of few: parts of 512, and the largest multiple of 16 in what is left.
constexpr std::int64_t kStep = 16;
constexpr std::int64_t kMost = 512;
std::int64_t part_of(std::int64_t left) { return std::min(left / kStep * kStep, kMost); }

// Weight gradients: tokens are the inner dimension, and the last few are the BLAS's.
void in_parts_of_inner(GemmSize size, float alpha, GemmOperand<float> a, GemmOperand<float> b,
                       float* out, std::int64_t out_stride) {
  if (size.k % kMost == 0) return onednn(size, alpha, a, b, 1.0F, out, out_stride);
  while (size.k > 0) {
    const std::int64_t part = part_of(size.k);
    if (part == 0) return call(sgemm_, size, alpha, a, b, 1.0F, out, out_stride);
    onednn({size.m, size.n, part}, alpha, a, b, 1.0F, out, out_stride);
    a.start += part * a.stride;
    b.start += part * b.stride;
    size.k -= part;
  }
}

// Outputs and their gradients: the last part begins among rows that are done, and makes them again.
void in_parts_of_rows(GemmSize size, float alpha, GemmOperand<float> a, GemmOperand<float> b,
                      float* out, std::int64_t out_stride) {
  if (size.m % kMost == 0) return onednn(size, alpha, a, b, 0.0F, out, out_stride);
  for (std::int64_t row = 0; row < size.m;) {
    std::int64_t part = part_of(size.m - row);
    if (part == 0) {
      part = std::min(size.m, kStep);
      row = size.m - part;
    }
    onednn({part, size.n, size.k}, alpha, {a.start + row * a.stride, a.stride}, b, 0.0F,
           out + row * out_stride, out_stride);
    row += part;
  }
}

}  // namespace

// A call costs 10 us before it multiplies, and a product of few rows or columns is one of vectors.
bool gemm_has_team(GemmSize size, GemmOperand<float> a, GemmOperand<float> b) {
  constexpr std::int64_t kMinFlops = std::int64_t{1} << 21;
  constexpr std::int64_t kMinWidth = 8;
  return std::min(size.m, size.n) >= kMinWidth && 2 * size.m * size.n * size.k >= kMinFlops &&
         dense(a, size.m, size.k) && dense(b, size.k, size.n) && has_faster_onednn();
}

template <>
void gemm<float>(GemmSize size, float alpha, GemmOperand<float> a, GemmOperand<float> b, float beta,
                 float* out, std::int64_t out_stride) {
  const bool adds_or_sets = beta == 0.0F || beta == 1.0F;
  if (!adds_or_sets || !gemm_has_team(size, a, b)) {
    call(sgemm_, size, alpha, a, b, beta, out, out_stride);
  } else if (beta == 1.0F && a.transposed && !b.transposed) {
    in_parts_of_inner(size, alpha, a, b, out, out_stride);
  } else if (beta == 0.0F && !a.transposed) {
    in_parts_of_rows(size, alpha, a, b, out, out_stride);
  } else {
    onednn(size, alpha, a, b, beta, out, out_stride);
  }
}
template <>
void gemm<double>(GemmSize size, double alpha, GemmOperand<double> a, GemmOperand<double> b,
                  double beta, double* out, std::int64_t out_stride) {
  call(dgemm_, size, alpha, a, b, beta, out, out_stride);
}

void gemm_bf16(GemmSize size, float alpha, GemmOperand<c10::BFloat16> a,
               GemmOperand<c10::BFloat16> b, float beta, float* out, std::int64_t out_stride) {
  const ColumnMajor c = column_major(size, a, b, out_stride);
  cblas_gemm_bf16bf16f32(kColumnMajor, b.transposed ? kTransposed : kNotTransposed,
                         a.transposed ? kTransposed : kNotTransposed, c.m, c.n, c.k, alpha,
                         reinterpret_cast<const std::uint16_t*>(b.start), c.lda,
                         reinterpret_cast<const std::uint16_t*>(a.start), c.ldb, beta, out, c.ldc);
}

bool has_gemm_bf16() {
#if defined(__x86_64__)
  static const bool has = cblas_gemm_bf16bf16f32 != nullptr && __builtin_cpu_is("intel") != 0 &&
                          __builtin_cpu_supports("avx512bf16") != 0;
  return has;
#else
  return false;
#endif
}

}  // namespace quatrain::kernels
