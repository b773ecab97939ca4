// SPDX-License-Identifier: Apache-2.0
// gemm.h over the BLAS that the torch library exports (Fortran interface, column-major: the
// row-major product is the transposed one with operands exchanged).
#include "quatrain/kernels/gemm.h"

#include <algorithm>

#include "quatrain/base/check.h"

extern "C" {
void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
            const float* beta, float* c, const int* ldc);
void dgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k,
            const double* alpha, const double* a, const int* lda, const double* b, const int* ldb,
            const double* beta, double* c, const int* ldc);
}

namespace quatrain::kernels {
namespace {

int blas_int(std::int64_t x) {
  CHECK(x <= 2147483647, "a GEMM dimension of {} exceeds the BLAS's 32-bit integers", x);
  return static_cast<int>(x);
}

template <class T, class Blas>
void column_major(Blas blas, GemmSize size, T alpha, GemmOperand<T> a, GemmOperand<T> b, T beta,
                  T* out, std::int64_t out_stride) {
  const int m = blas_int(size.n);
  const int n = blas_int(size.m);
  const int k = blas_int(size.k);
  const char trans_first = b.transposed ? 'T' : 'N';
  const char trans_second = a.transposed ? 'T' : 'N';
  const int lda = blas_int(std::max<std::int64_t>({b.stride, b.transposed ? k : m, 1}));
  const int ldb = blas_int(std::max<std::int64_t>({a.stride, a.transposed ? n : k, 1}));
  const int ldc = blas_int(std::max<std::int64_t>({out_stride, m, 1}));
  blas(&trans_first, &trans_second, &m, &n, &k, &alpha, b.start, &lda, a.start, &ldb, &beta, out,
       &ldc);
}

}  // namespace

template <>
void gemm<float>(GemmSize size, float alpha, GemmOperand<float> a, GemmOperand<float> b, float beta,
                 float* out, std::int64_t out_stride) {
  column_major(sgemm_, size, alpha, a, b, beta, out, out_stride);
}
template <>
void gemm<double>(GemmSize size, double alpha, GemmOperand<double> a, GemmOperand<double> b,
                  double beta, double* out, std::int64_t out_stride) {
  column_major(dgemm_, size, alpha, a, b, beta, out, out_stride);
}

}  // namespace quatrain::kernels
