// SPDX-License-Identifier: Apache-2.0
// Softmax cross-entropy of a chunk of logits, with the gradient in their place. Three passes over a
// row that stays in cache: largest logit, sum of exponentials, gradient (exponentials again:
// cheaper than a buffer). z-loss: PaLM (arXiv:2204.02311), section 5: z_coef * lse^2 a token.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "quatrain/kernels/dispatch.h"
#include "quatrain/kernels/parallel.h"
#include "quatrain/kernels/pointwise.h"
#include "quatrain/kernels/vector.h"

namespace quatrain::kernels {
namespace {

constexpr std::int64_t kNotTrained = -100;

struct RowSums {
  double loss = 0.0;
  double lse = 0.0;
  double max_logit = 0.0;
};

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

template <class T>
RowSums cross_entropy_row(T* x, std::int64_t n, std::int64_t label, double scale, double z_coef,
                          bool gradient) {
  using W = Wide<T>;
  const Extremes<T> extreme = extremes(x, n);
  const W sum = sum_of_exponentials(x, n, extreme.largest);
  const double lse = static_cast<double>(extreme.largest) + std::log(static_cast<double>(sum));
  const auto at_label = static_cast<double>(load(x[label]));
  const double max_logit =
      std::max(static_cast<double>(extreme.largest), -static_cast<double>(extreme.smallest));
  if (gradient) {
    const double factor = scale * (1.0 + 2.0 * z_coef * lse) / static_cast<double>(sum);
    write_gradient(x, n, extreme.largest, static_cast<W>(factor));
    // The label's element once more in float64: p - 1 must not lose the digits of p near 1.
    const double p = std::exp(at_label - lse);
    const double own = scale * (p * (1.0 + 2.0 * z_coef * lse) - 1.0);
    x[label] = store<T>(static_cast<W>(own));
  }
  return {lse - at_label, lse, max_logit};
}

void check_labels(const at::Tensor& logits, const at::Tensor& labels) {
  CHECK(logits.dim() == 2 && logits.is_contiguous(), "logits are a contiguous matrix");
  CHECK(labels.scalar_type() == at::kLong && labels.is_contiguous() &&
            labels.numel() == logits.size(0),
        "{} labels for {} rows of logits", labels.numel(), logits.size(0));
  const auto* const label = data<std::int64_t>(labels);
  for (std::int64_t i = 0; i < labels.numel(); ++i) {
    CHECK(label[i] == kNotTrained || (label[i] >= 0 && label[i] < logits.size(1)),
          "label {} in a vocabulary of {}", label[i], logits.size(1));
  }
}

}  // namespace

CrossEntropySums cross_entropy_(at::Tensor& logits_NV, const at::Tensor& labels_N, double scale,
                                double z_coef, bool gradient) {
  check_labels(logits_NV, labels_N);
  const std::int64_t rows = logits_NV.size(0);
  const std::int64_t vocabulary = logits_NV.size(1);
  const auto* const labels = data<std::int64_t>(labels_N);
  std::vector<RowSums> row_sums(static_cast<std::size_t>(rows));
  dispatch(logits_NV.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const logits = mutable_data<T>(logits_NV);
    parallel_ranges(rows, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        T* const row = logits + r * vocabulary;
        if (labels[r] != kNotTrained) {
          row_sums[static_cast<std::size_t>(r)] =
              cross_entropy_row(row, vocabulary, labels[r], scale, z_coef, gradient);
        } else if (gradient) {
          std::fill_n(row, vocabulary, T(0));
        }
      }
    });
  });
  CrossEntropySums sums;
  for (std::int64_t r = 0; r < rows; ++r) {
    if (labels[r] == kNotTrained) continue;
    const RowSums& row = row_sums[static_cast<std::size_t>(r)];
    sums.loss += row.loss;
    sums.z += row.lse * row.lse;
    sums.max_logit = std::max(sums.max_logit, row.max_logit);
    ++sums.tokens;
  }
  return sums;
}

}  // namespace quatrain::kernels
