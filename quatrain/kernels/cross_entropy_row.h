// SPDX-License-Identifier: Apache-2.0
// Passes over one row of logits that the whole and the vocabulary-parallel cross-entropy share.
// Private to kernels/.
#pragma once
#include <cstdint>
#include <limits>

#include "quatrain/kernels/dispatch.h"
#include "quatrain/kernels/vector.h"

namespace quatrain::kernels {

inline constexpr std::int64_t kNotTrained = -100;

// The last n < lanes elements, and `fill` behind them.
template <class T>
simd::Vec<Wide<T>> load_filled(const T* p, std::int64_t n, T fill) {
  T padded[simd::kLanes<Wide<T>>];
  for (std::int64_t i = 0; i < simd::kLanes<Wide<T>>; ++i) padded[i] = i < n ? p[i] : fill;
  return simd::load(static_cast<const T*>(padded));
}

// Calls body(registers of x) for all of x; the last one is filled up with `fill`.
template <class T, class Body>
void for_each_filled(const T* x, std::int64_t n, T fill, const Body& body) {
  constexpr std::int64_t lanes = simd::kLanes<Wide<T>>;
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body(simd::load(x + i));
  if (i < n) body(load_filled(x + i, n - i, fill));
}

template <class T>
struct Extremes {
  Wide<T> largest, smallest;
};

template <class T>
Extremes<T> extremes(const T* x, std::int64_t n) {
  using W = Wide<T>;
  simd::Vec<W> high = simd::splat(static_cast<W>(load(x[0])));
  simd::Vec<W> low = high;
  for_each_filled(x, n, x[0], [&](simd::Vec<W> v) {
    high = simd::max(high, v);
    low = simd::min(low, v);
  });
  Extremes<T> e{high[0], low[0]};
  for (int l = 1; l < simd::kLanes<W>; ++l) {
    e.largest = high[l] > e.largest ? high[l] : e.largest;
    e.smallest = low[l] < e.smallest ? low[l] : e.smallest;
  }
  return e;
}

template <class T>
Wide<T> sum_of_exponentials(const T* x, std::int64_t n, Wide<T> largest) {
  using W = Wide<T>;
  simd::Vec<W> sum{};
  for_each_filled(x, n, static_cast<T>(-std::numeric_limits<W>::infinity()),
                  [&](simd::Vec<W> v) { sum += simd::exp<W>(v - largest); });
  return simd::sum_lanes<W>(sum);
}

// x = factor * e^(x - largest); then the label's own term.
template <class T>
void write_gradient(T* x, std::int64_t n, Wide<T> largest, Wide<T> factor) {
  using W = Wide<T>;
  simd::for_each_vector<W>(n, [&](std::int64_t i, const auto& io) {
    io.store(x + i, simd::exp<W>(io.load(x + i) - largest) * factor);
  });
}

// Labels of N rows, each -100 or a word of `vocab`.
inline void check_labels(const at::Tensor& logits, const at::Tensor& labels, std::int64_t vocab) {
  CHECK(logits.dim() == 2 && logits.is_contiguous(), "logits are a contiguous matrix");
  CHECK(labels.scalar_type() == at::kLong && labels.is_contiguous() &&
            labels.numel() == logits.size(0),
        "{} labels for {} rows of logits", labels.numel(), logits.size(0));
  const auto* const label = data<std::int64_t>(labels);
  for (std::int64_t i = 0; i < labels.numel(); ++i) {
    CHECK(label[i] == kNotTrained || (label[i] >= 0 && label[i] < vocab),
          "label {} in a vocabulary of {}", label[i], vocab);
  }
}

}  // namespace quatrain::kernels
