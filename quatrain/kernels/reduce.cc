// SPDX-License-Identifier: Apache-2.0
// Sums in a fixed order: column sums row by row; sums of squares in blocks of 4,096 elements, eight
// interleaved sums a block, blocks added by a binary tree. Threads change who adds, not what.
#include <algorithm>
#include <vector>

#include "quatrain/kernels/dispatch.h"
#include "quatrain/kernels/parallel.h"
#include "quatrain/kernels/pointwise.h"
#include "quatrain/kernels/scalar.h"

namespace quatrain::kernels {
namespace {

constexpr std::int64_t kBlock = 4096;
constexpr std::int64_t kLanes = 8;

template <class T>
double block_sum(const T* x, std::int64_t count) {
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) {
      const auto value = static_cast<double>(load(x[i + l]));
      lanes[l] = fused(value, value, lanes[l]);
    }
  }
  for (std::int64_t l = 0; i + l < count; ++l) {
    const auto value = static_cast<double>(load(x[i + l]));
    lanes[l] = fused(value, value, lanes[l]);
  }
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// Neighbours first, then neighbours of those, and so on.
double tree_sum(std::vector<double>& parts) {
  for (std::size_t width = 1; width < parts.size(); width *= 2) {
    for (std::size_t i = 0; i + width < parts.size(); i += 2 * width) parts[i] += parts[i + width];
  }
  return parts.empty() ? 0.0 : parts[0];
}

}  // namespace

void add_rows(at::Tensor& out_D, const at::Tensor& x_ND) {
  CHECK(x_ND.dim() == 2 && out_D.dim() == 1 && out_D.size(0) == x_ND.size(1),
        "column sums of [{}, {}] into {} elements", x_ND.size(0), x_ND.size(1), out_D.numel());
  CHECK(out_D.scalar_type() == wide(x_ND.scalar_type()) && out_D.is_contiguous(),
        "column sums go into wide, contiguous memory");
  CHECK(x_ND.size(1) <= 1 || x_ND.stride(1) == 1, "rows have stride {}", x_ND.stride(1));
  dispatch(x_ND.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto* const out = mutable_data<Wide<T>>(out_D);
    const T* const x = data<T>(x_ND);
    const std::int64_t rows = x_ND.size(0);
    const std::int64_t stride = x_ND.stride(0);
    parallel_ranges(x_ND.size(1), 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const T* const row = x + r * stride;
        for (std::int64_t d = begin; d < end; ++d) out[d] += load(row[d]);
      }
    });
  });
}

double sum_squares(const at::Tensor& x) {
  const at::Tensor flat = x.contiguous();
  const std::int64_t count = flat.numel();
  std::vector<double> parts(static_cast<std::size_t>((count + kBlock - 1) / kBlock));
  dispatch(flat.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* const start = data<T>(flat);
    const auto blocks = static_cast<std::int64_t>(parts.size());
    parallel_ranges(blocks, 8, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) {
        parts[static_cast<std::size_t>(b)] =
            block_sum(start + b * kBlock, std::min(kBlock, count - b * kBlock));
      }
    });
  });
  return tree_sum(parts);
}

}  // namespace quatrain::kernels
