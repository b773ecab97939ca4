// SPDX-License-Identifier: Apache-2.0
// Dropout whose mask is a function of global coordinates: Philox 4x32-10 (quatrain/base/rng.h),
// keyed by a hash of (seed, sample, position), counted by (column, site, step). A group of 64
// columns is 16 counters, whose first words make its first 16 draws, the second words the next:
// so whole registers of counters run side by side.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "quatrain/base/rng.h"
#include "quatrain/kernels/dispatch.h"
#include "quatrain/kernels/parallel.h"
#include "quatrain/kernels/pointwise.h"
#include "quatrain/kernels/vector.h"

namespace quatrain::kernels {

namespace {

constexpr std::int64_t kCounters = 16;
constexpr std::int64_t kGroup = 4 * kCounters;

std::uint32_t low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
std::uint32_t high(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }

struct RowKey {
  std::array<std::uint32_t, 2> key;
  std::uint32_t site;
  std::uint64_t step;
};

RowKey row_key(const DropoutKey& key, std::int64_t sample, std::int64_t position) {
  const auto s = static_cast<std::uint64_t>(sample), p = static_cast<std::uint64_t>(position);
  const PhiloxBlock mixed =
      philox4x32_10({low(s), high(s), low(p), high(p)}, {low(key.seed), high(key.seed)});
  return {{mixed[0], mixed[1]},
          low(static_cast<std::uint64_t>(key.site)),
          static_cast<std::uint64_t>(key.step)};
}

// The 64 draws of `group`.
void draw_group(const RowKey& row, std::int64_t group, std::uint32_t (&draws)[kGroup]) {
  std::uint32_t c0[kCounters], c1[kCounters], c2[kCounters], c3[kCounters];
  for (std::uint32_t i = 0; i < kCounters; ++i) {
    c0[i] = low(static_cast<std::uint64_t>(group * kCounters)) + i;
    c1[i] = row.site;
    c2[i] = low(row.step);
    c3[i] = high(row.step);
  }
  std::uint32_t k0 = row.key[0], k1 = row.key[1];
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9U, k1 += 0xBB67AE85U)
    for (int i = 0; i < kCounters; ++i) {
      const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * c0[i];
      const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * c2[i];
      c0[i] = high(product1) ^ c1[i] ^ k0;
      c1[i] = low(product1);
      c2[i] = high(product0) ^ c3[i] ^ k1;
      c3[i] = low(product0);
    }
  std::copy_n(c0, kCounters, draws);
  std::copy_n(c1, kCounters, draws + kCounters);
  std::copy_n(c2, kCounters, draws + 2 * kCounters);
  std::copy_n(c3, kCounters, draws + 3 * kCounters);
}

// Columns [0, width) of x are columns [begin, begin + width) of the whole row.
template <typename S>
void drop_row(S* x, std::int64_t width, std::int64_t begin, const RowKey& row,
              std::uint32_t threshold, Wide<S> factor) {
  using T = Wide<S>;
  std::uint32_t draws[kGroup];
  for (std::int64_t column = begin; column < begin + width;) {
    const std::int64_t group = column / kGroup;
    const std::int64_t end = std::min((group + 1) * kGroup, begin + width);
    draw_group(row, group, draws);
    T kept[kGroup];
    for (int i = 0; i < kGroup; ++i) kept[i] = draws[i] >= threshold ? factor : T(0);
    const T* factors = kept + (column - group * kGroup);
    S* part = x + (column - begin);
    for (std::int64_t i = 0; i < end - column; ++i)
      part[i] = store<S>(factors[i] == T(0) ? T(0) : load(part[i]) * factors[i]);
    column = end;
  }
}

// As drop_row(), each element times its number in [1 - eps, 1 + eps).
template <typename T>
void jitter_row(T* x, std::int64_t width, std::int64_t begin, const RowKey& row, double eps) {
  std::uint32_t draws[kGroup];
  for (std::int64_t column = begin; column < begin + width;) {
    const std::int64_t group = column / kGroup;
    const std::int64_t end = std::min((group + 1) * kGroup, begin + width);
    draw_group(row, group, draws);
    T factors[kGroup];
    const double step = 2.0 * eps / 4294967296.0;
    for (int i = 0; i < kGroup; ++i) factors[i] = T(1.0 - eps + step * double(draws[i]));
    const T* of_part = factors + (column - group * kGroup);
    T* part = x + (column - begin);
    for (std::int64_t i = 0; i < end - column; ++i) part[i] *= of_part[i];
    column = end;
  }
}

// Calls body(n, key of row n) for every row of x.
template <class Body>
void for_each_row(const at::Tensor& x_ND, const DropoutKey& key, const Body& body) {
  CHECK(x_ND.dim() == 2 && (x_ND.size(1) <= 1 || x_ND.stride(1) == 1),
        "dropout: a matrix with contiguous rows is needed");
  const std::int64_t N = x_ND.size(0), D = x_ND.size(1);
  CHECK(key.samples_N.numel() == N && key.positions_N.numel() == N,
        "dropout: {} rows, {} samples, {} positions", N, key.samples_N.numel(),
        key.positions_N.numel());
  const at::Tensor samples = key.samples_N.contiguous(), positions = key.positions_N.contiguous();
  const auto* sample = data<std::int64_t>(samples);
  const auto* position = data<std::int64_t>(positions);
  const std::int64_t grain = std::max<std::int64_t>(1, 8192 / std::max<std::int64_t>(1, D));
  parallel_ranges(N, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) body(n, row_key(key, sample[n], position[n]));
  });
}

}  // namespace

void dropout_(at::Tensor& x_ND, double p, const DropoutKey& key) {
  CHECK(p >= 0.0 && p < 1.0, "dropout probability {} is not in [0, 1)", p);
  if (p == 0.0) return;
  const auto threshold =
      static_cast<std::uint32_t>(std::min(std::round(p * 4294967296.0), 4294967295.0));
  dispatch(x_ND.scalar_type(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    S* x = mutable_data<S>(x_ND);
    const auto factor = static_cast<Wide<S>>(1.0 / (1.0 - p));
    const std::int64_t D = x_ND.size(1), stride = x_ND.stride(0);
    for_each_row(x_ND, key, [&](std::int64_t n, const RowKey& row) {
      drop_row<S>(x + n * stride, D, key.column_begin, row, threshold, factor);
    });
  });
}

void jitter_(at::Tensor& x_ND, double eps, const DropoutKey& key) {
  CHECK(eps >= 0.0 && eps < 1.0, "jitter of {} is not in [0, 1)", eps);
  CHECK(wide(x_ND.scalar_type()) == x_ND.scalar_type(), "jitter of a narrow tensor");
  if (eps == 0.0) return;
  dispatch(x_ND.scalar_type(), [&](auto tag) {
    using T = Wide<typename decltype(tag)::type>;
    if constexpr (std::is_same_v<T, typename decltype(tag)::type>) {
      T* x = mutable_data<T>(x_ND);
      const std::int64_t D = x_ND.size(1), stride = x_ND.stride(0);
      for_each_row(x_ND, key, [&](std::int64_t n, const RowKey& row) {
        jitter_row<T>(x + n * stride, D, key.column_begin, row, eps);
      });
    }
  });
}

}  // namespace quatrain::kernels
