// SPDX-License-Identifier: Apache-2.0
// Softmax cross-entropy of a chunk of logits, with the gradient in their place. Three passes over a
// row that stays in cache: largest logit, sum of exponentials, gradient (exponentials again:
// cheaper than a buffer). z-loss: PaLM (arXiv:2204.02311), section 5: z_coef * lse^2 a token.
#include <algorithm>
#include <cmath>
#include <vector>

#include "quatrain/kernels/cross_entropy_row.h"
#include "quatrain/kernels/parallel.h"
#include "quatrain/kernels/pointwise.h"

namespace quatrain::kernels {
namespace {

struct RowSums {
  double loss = 0.0;
  double lse = 0.0;
  double max_logit = 0.0;
};

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

}  // namespace

CrossEntropySums cross_entropy_(at::Tensor& logits_NV, const at::Tensor& labels_N, double scale,
                                double z_coef, bool gradient) {
  check_labels(logits_NV, labels_N, logits_NV.size(1));
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
