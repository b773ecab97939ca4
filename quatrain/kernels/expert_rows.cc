// SPDX-License-Identifier: Apache-2.0
#include "quatrain/kernels/expert_rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "quatrain/kernels/dispatch.h"
#include "quatrain/kernels/few_rows.h"
#include "quatrain/kernels/flops.h"
#include "quatrain/kernels/gemm.h"
#include "quatrain/kernels/parallel.h"

namespace quatrain::kernels {
namespace {

constexpr std::int64_t kElements = 16384;  // that a thread takes at least

std::int64_t grain(std::int64_t width) { return kElements / (width + 1) + 1; }

void check_rows(const at::Tensor& x, const char* what) {
  CHECK(x.dim() == 2 && (x.size(1) <= 1 || x.stride(1) == 1), "{} is not a matrix of rows", what);
}

}  // namespace

ExpertRows sort_by_expert(const at::Tensor& experts_Nk, std::int64_t experts) {
  CHECK(experts_Nk.scalar_type() == at::kLong && experts_Nk.is_contiguous(),
        "choices are contiguous int64");
  const std::int64_t count = experts_Nk.numel();
  ExpertRows rows;
  rows.row_Nk = at::empty(experts_Nk.sizes(), experts_Nk.options());
  rows.begin.assign(static_cast<std::size_t>(experts) + 1, 0);
  const auto* expert = data<std::int64_t>(experts_Nk);
  for (std::int64_t i = 0; i < count; ++i) {
    CHECK(expert[i] < experts, "expert {} of {}", expert[i], experts);
    if (expert[i] < 0) continue;
    ++rows.begin[static_cast<std::size_t>(expert[i]) + 1];
  }
  for (std::size_t e = 0; e < static_cast<std::size_t>(experts); ++e) {
    rows.begin[e + 1] += rows.begin[e];
  }
  rows.choice_M = at::empty({rows.count()}, experts_Nk.options());
  std::vector<std::int64_t> next = rows.begin;
  auto* choice = mutable_data<std::int64_t>(rows.choice_M);
  auto* row = mutable_data<std::int64_t>(rows.row_Nk);
  for (std::int64_t i = 0; i < count; ++i) {
    row[i] = -1;
    if (expert[i] < 0) continue;
    row[i] = next[static_cast<std::size_t>(expert[i])]++;
    choice[row[i]] = i;
  }
  return rows;
}

at::Tensor gather_by_expert(const at::Tensor& x_ND, const ExpertRows& rows) {
  check_rows(x_ND, "x");
  const std::int64_t k = rows.row_Nk.size(1), width = x_ND.size(1), stride = x_ND.stride(0);
  CHECK(x_ND.size(0) == rows.row_Nk.size(0), "{} rows, choices of {}", x_ND.size(0),
        rows.row_Nk.size(0));
  at::Tensor out_MD = at::empty({rows.count(), width}, x_ND.options());
  dispatch(x_ND.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = data<T>(x_ND);
    T* to = mutable_data<T>(out_MD);
    const auto* choice = data<std::int64_t>(rows.choice_M);
    const auto bytes = static_cast<std::size_t>(width) * sizeof(T);
    parallel_ranges(rows.count(), grain(width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t m = begin; m < end; ++m) {
        std::memcpy(to + m * width, from + choice[m] / k * stride, bytes);
      }
    });
  });
  return out_MD;
}

at::Tensor sum_by_row(const at::Tensor& y_MD, const ExpertRows& rows) {
  check_rows(y_MD, "y");
  const std::int64_t count = rows.row_Nk.size(0), k = rows.row_Nk.size(1), width = y_MD.size(1);
  CHECK(y_MD.size(0) == rows.count(), "{} rows, choices of {}", y_MD.size(0), rows.count());
  at::Tensor out_ND = at::empty({count, width}, y_MD.options());
  dispatch(y_MD.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = data<T>(y_MD);
    T* to = mutable_data<T>(out_ND);
    const auto* row = data<std::int64_t>(rows.row_Nk);
    const std::int64_t stride = y_MD.stride(0);
    parallel_ranges(count, grain(width * k), [&](std::int64_t begin, std::int64_t end) {
      std::vector<Wide<T>> sum(static_cast<std::size_t>(width));
      for (std::int64_t n = begin; n < end; ++n) {
        std::fill(sum.begin(), sum.end(), Wide<T>(0));
        for (std::int64_t j = 0; j < k; ++j) {
          if (row[n * k + j] < 0) continue;
          const T* part = from + row[n * k + j] * stride;
          for (std::int64_t d = 0; d < width; ++d) {
            sum[static_cast<std::size_t>(d)] += load(part[d]);
          }
        }
        for (std::int64_t d = 0; d < width; ++d) {
          to[n * width + d] = store<T>(sum[static_cast<std::size_t>(d)]);
        }
      }
    });
  });
  return out_ND;
}

at::Tensor by_choice(const at::Tensor& x_M, const ExpertRows& rows) {
  CHECK(x_M.dim() == 1 && x_M.size(0) == rows.count() && x_M.is_contiguous(),
        "{} numbers of {} rows", x_M.numel(), rows.count());
  at::Tensor out_Nk = at::zeros(rows.row_Nk.sizes(), x_M.options());
  dispatch(x_M.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* x = data<T>(x_M);
    T* out = mutable_data<T>(out_Nk);
    const auto* choice = data<std::int64_t>(rows.choice_M);
    for (std::int64_t m = 0; m < rows.count(); ++m) out[choice[m]] = x[m];
  });
  return out_Nk;
}

void scale_rows_(at::Tensor& x_MD, const at::Tensor& scales_M) {
  check_rows(x_MD, "x");
  CHECK(scales_M.numel() == x_MD.size(0) && scales_M.is_contiguous() &&
            scales_M.scalar_type() == wide(x_MD.scalar_type()),
        "{} scales of {} rows", scales_M.numel(), x_MD.size(0));
  dispatch(x_MD.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* x = mutable_data<T>(x_MD);
    const auto* scale = data<Wide<T>>(scales_M);
    const std::int64_t width = x_MD.size(1), stride = x_MD.stride(0);
    parallel_ranges(x_MD.size(0), grain(width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t m = begin; m < end; ++m) {
        for (T* p = x + m * stride; p < x + m * stride + width; ++p) {
          *p = store<T>(load(*p) * scale[m]);
        }
      }
    });
  });
}

at::Tensor row_dots(const at::Tensor& a_MD, const at::Tensor& b_MD) {
  check_rows(a_MD, "a");
  check_rows(b_MD, "b");
  CHECK(a_MD.sizes() == b_MD.sizes() && a_MD.scalar_type() == b_MD.scalar_type(),
        "dots of rows that differ");
  at::Tensor dots_M = at::empty({a_MD.size(0)}, a_MD.options().dtype(wide(a_MD.scalar_type())));
  dispatch(a_MD.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T *a = data<T>(a_MD), *b = data<T>(b_MD);
    auto* out = mutable_data<Wide<T>>(dots_M);
    const std::int64_t width = a_MD.size(1);
    parallel_ranges(a_MD.size(0), grain(width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t m = begin; m < end; ++m) {
        const T *x = a + m * a_MD.stride(0), *y = b + m * b_MD.stride(0);
        Wide<T> sum = 0;
        for (std::int64_t d = 0; d < width; ++d) sum += load(x[d]) * load(y[d]);
        out[m] = sum;
      }
    });
  });
  return dots_M;
}

namespace {

// A piece with fewer rows takes other code paths in the BLAS, with other bits.
constexpr std::int64_t kMinRows = 4;

struct Grouped {
  const at::Tensor &out_MO, &x_MI;
  std::span<const at::Tensor> matrices;
  bool transposed;
  std::span<const std::int64_t> begin;
};

// Rows [first, last), by the calling thread.
template <class T>
void multiply_rows(const Grouped& g, std::int64_t first, std::int64_t last) {
  const std::int64_t out_stride = g.out_MO.stride(0), x_stride = g.x_MI.stride(0);
  const T* x = data<T>(g.x_MI);
  T* out = mutable_data<T>(g.out_MO);
  for (std::size_t e = 0; e < g.matrices.size(); ++e) {
    const std::int64_t from = std::max(g.begin[e], first), to = std::min(g.begin[e + 1], last);
    if (from >= to) continue;
    const at::Tensor& w = g.matrices[e];
    const GemmSize size{to - from, g.out_MO.size(1), g.x_MI.size(1)};
    const GemmOperand<T> left{x + from * x_stride, x_stride};
    const GemmOperand<T> right{data<T>(w), w.stride(0), g.transposed};
    T* const to_rows = out + from * out_stride;
    if constexpr (std::is_same_v<T, float>) {
      if (size.m <= kFewRows) {
        few_rows_product(size, left, right, to_rows, out_stride);
        continue;
      }
    }
    gemm<T>(size, T(1), left, right, T(0), to_rows, out_stride);
  }
}

// Near row `even`, so that no run is left with a piece that is too small.
std::int64_t row_cut(std::span<const std::int64_t> begin, std::int64_t even) {
  if (even == 0) return 0;
  const auto next = std::upper_bound(begin.begin(), begin.end(), even);
  if (next == begin.end()) return begin.back();
  const std::int64_t run = *(next - 1);
  const std::int64_t cut = run + (even - run) / kMinRows * kMinRows;
  return *next - cut < kMinRows ? *next : cut;
}

// Even parts of all rows, one a thread: the team starts once, and only matrices at a cut are read
// by two threads.
template <class T>
void multiply_by_rows(const Grouped& g) {
  const std::int64_t pieces = num_threads(), rows = g.begin.back();
  parallel_pieces(static_cast<int>(pieces), [&](int piece) {
    multiply_rows<T>(g, row_cut(g.begin, rows * piece / pieces),
                     row_cut(g.begin, rows * (piece + 1) / pieces));
  });
}

// Whether every thread gets whole runs, or nearly so.
bool many_runs(const Grouped& g) {
  std::int64_t runs = 0;
  for (std::size_t e = 0; e + 1 < g.begin.size(); ++e) runs += g.begin[e + 1] > g.begin[e] ? 1 : 0;
  return runs >= 2 * num_threads();
}

// As matmul_out() of every run.
bool by_rows(const Grouped& g) {
  const at::ScalarType dtype = g.out_MO.scalar_type();
  if (dtype == at::kBFloat16 || g.x_MI.size(1) == 0 || !many_runs(g)) return false;
  check_rows(g.x_MI, "x");
  check_rows(g.out_MO, "out");
  for (const at::Tensor& w : g.matrices) {
    CHECK(w.dim() == 2 && w.stride(1) == 1 && w.scalar_type() == dtype &&
              w.size(g.transposed ? 1 : 0) == g.x_MI.size(1) &&
              w.size(g.transposed ? 0 : 1) == g.out_MO.size(1),
          "an expert's matrix does not fit {} -> {}", g.x_MI.size(1), g.out_MO.size(1));
  }
  CHECK(g.x_MI.scalar_type() == dtype, "rows are {}, outputs {}",
        c10::toString(g.x_MI.scalar_type()), c10::toString(dtype));
  count_flops(2 * g.begin.back() * g.out_MO.size(1) * g.x_MI.size(1));
  dtype == at::kDouble ? multiply_by_rows<double>(g) : multiply_by_rows<float>(g);
  return true;
}

}  // namespace

void grouped_matmul_out(at::Tensor& out_MO, const at::Tensor& x_MI,
                        std::span<const at::Tensor> matrices, bool transposed,
                        std::span<const std::int64_t> begin) {
  CHECK(begin.size() == matrices.size() + 1 && begin.back() == x_MI.size(0) &&
            out_MO.size(0) == x_MI.size(0),
        "{} matrices for {} runs of {} rows", matrices.size(), begin.size() - 1, x_MI.size(0));
  if (by_rows({out_MO, x_MI, matrices, transposed, begin})) return;
  for (std::size_t e = 0; e < matrices.size(); ++e) {
    const std::int64_t count = begin[e + 1] - begin[e];
    if (count == 0) continue;
    at::Tensor out = out_MO.narrow(0, begin[e], count);
    const at::Tensor x = x_MI.narrow(0, begin[e], count);
    matmul_out(out, n(x), {matrices[e], transposed});
  }
}

}  // namespace quatrain::kernels
