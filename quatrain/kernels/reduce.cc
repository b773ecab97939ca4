// SPDX-License-Identifier: Apache-2.0
// Sums in a fixed order: column sums row by row; sums of squares in blocks of 4,096 elements, 32
// interleaved sums a block, blocks added by a binary tree. Threads change who adds, not what.
#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <vector>

#include "quatrain/kernels/dispatch.h"
#include "quatrain/kernels/parallel.h"
#include "quatrain/kernels/pointwise.h"
#include "quatrain/kernels/scalar.h"

namespace quatrain::kernels {
namespace {

constexpr std::int64_t kBlock = 4096;
constexpr std::int64_t kLanes = 8;
typedef double Lanes __attribute__((vector_size(kLanes * sizeof(double))));

template <class Stored>
struct LanesOf {
  typedef Stored type __attribute__((vector_size(kLanes * sizeof(Stored))));
};
template <class Stored>
typename LanesOf<Stored>::type load_stored(const void* x) {
  typename LanesOf<Stored>::type values;
  std::memcpy(&values, x, sizeof values);
  return values;
}

template <class T>
Lanes load_lanes(const T* x) {
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    using Words = typename LanesOf<std::uint32_t>::type;
    using Floats = typename LanesOf<float>::type;
    const Words words = __builtin_convertvector(load_stored<std::uint16_t>(x), Words) << 16;
    return __builtin_convertvector(std::bit_cast<Floats>(words), Lanes);
  } else {
    return __builtin_convertvector(load_stored<T>(x), Lanes);
  }
}

// Four registers of sums take turns; a tail is filled up with zeros.
template <class T>
double block_sum(const T* x, std::int64_t count) {
  Lanes sums[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    for (std::int64_t s = 0; s < 4; ++s) {
      const Lanes values = load_lanes(x + i + s * kLanes);
      sums[s] += values * values;
    }
  }
  T rest[4 * kLanes] = {};
  std::copy(x + i, x + count, rest);
  for (std::int64_t s = 0; s < 4; ++s) {
    const Lanes values = load_lanes(rest + s * kLanes);
    sums[s] += values * values;
  }
  const Lanes sum = (sums[0] + sums[2]) + (sums[1] + sums[3]);
  return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
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
