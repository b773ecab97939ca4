// SPDX-License-Identifier: Apache-2.0
#include "quatrain/kernels/expert_rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstring>

#include "quatrain/kernels/dispatch.h"
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

void grouped_matmul_out(at::Tensor& out_MO, const at::Tensor& x_MI,
                        std::span<const at::Tensor> matrices, bool transposed,
                        std::span<const std::int64_t> begin) {
  CHECK(begin.size() == matrices.size() + 1 && begin.back() == x_MI.size(0) &&
            out_MO.size(0) == x_MI.size(0),
        "{} matrices for {} runs of {} rows", matrices.size(), begin.size() - 1, x_MI.size(0));
  for (std::size_t e = 0; e < matrices.size(); ++e) {
    const std::int64_t count = begin[e + 1] - begin[e];
    if (count == 0) continue;
    at::Tensor out = out_MO.narrow(0, begin[e], count);
    const at::Tensor x = x_MI.narrow(0, begin[e], count);
    matmul_out(out, n(x), {matrices[e], transposed});
  }
}

}  // namespace quatrain::kernels
