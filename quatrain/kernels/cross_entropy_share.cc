// SPDX-License-Identifier: Apache-2.0
// Cross-entropy over a vocabulary that is cut over ranks (Shoeybi et al., arXiv:1909.08053, section
// 3): no rank sees a whole row of logits. Statistics of the shares are merged in the order of
// ranks, in float64, so every rank computes the same bits of the loss.
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "quatrain/kernels/cross_entropy_row.h"
#include "quatrain/kernels/parallel.h"
#include "quatrain/kernels/pointwise.h"

namespace quatrain::kernels {
namespace {

struct RowStatistics {
  double largest, sum, at_label;
};
static_assert(sizeof(RowStatistics) == 3 * sizeof(double));

bool holds(const VocabShare& share, std::int64_t words, std::int64_t label) {
  return label >= share.begin && label < share.begin + words;
}

RowStatistics merge(const RowStatistics* of_shares, std::int64_t shares, std::int64_t stride) {
  RowStatistics all{-std::numeric_limits<double>::infinity(), 0.0,
                    -std::numeric_limits<double>::infinity()};
  for (std::int64_t s = 0; s < shares; ++s) {
    all.largest = std::max(all.largest, of_shares[s * stride].largest);
    all.at_label = std::max(all.at_label, of_shares[s * stride].at_label);
  }
  for (std::int64_t s = 0; s < shares; ++s) {
    const RowStatistics& share = of_shares[s * stride];
    all.sum += share.sum * std::exp(share.largest - all.largest);
  }
  return all;
}

template <class T>
void gradient_of_row(T* x, std::int64_t words, std::int64_t own_label, const RowStatistics& row,
                     const ShareLoss& loss) {
  using W = Wide<T>;
  const double lse = row.largest + std::log(row.sum);
  const double slope = 1.0 + 2.0 * loss.z_coef * lse;
  write_gradient(x, words, static_cast<W>(row.largest),
                 static_cast<W>(loss.scale * slope / row.sum));
  if (own_label < 0) return;
  // In float64: p - 1 must not lose the digits of p near 1.
  const double p = std::exp(row.at_label - lse);
  x[own_label] = store<T>(static_cast<W>(loss.scale * (p * slope - 1.0)));
}

}  // namespace

ShareStatistics cross_entropy_statistics(const at::Tensor& logits_NV, const at::Tensor& labels_N,
                                         const VocabShare& share) {
  check_labels(logits_NV, labels_N, share.vocab);
  const std::int64_t rows = logits_NV.size(0);
  const std::int64_t words = logits_NV.size(1);
  const auto* const labels = data<std::int64_t>(labels_N);
  ShareStatistics out{at::zeros({rows, 3}, at::TensorOptions(at::kDouble))};
  auto* const statistics = static_cast<RowStatistics*>(out.of_rows_N3.mutable_data_ptr());
  std::vector<double> max_logits(static_cast<std::size_t>(rows), 0.0);
  dispatch(logits_NV.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* const logits = data<T>(logits_NV);
    parallel_ranges(rows, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        if (labels[r] == kNotTrained) continue;
        const T* const x = logits + r * words;
        const Extremes<T> extreme = extremes(x, words);
        RowStatistics& row = statistics[r];
        row.largest = static_cast<double>(extreme.largest);
        row.sum = static_cast<double>(sum_of_exponentials(x, words, extreme.largest));
        row.at_label = holds(share, words, labels[r])
                           ? static_cast<double>(load(x[labels[r] - share.begin]))
                           : -std::numeric_limits<double>::infinity();
        max_logits[static_cast<std::size_t>(r)] =
            std::max(row.largest, -static_cast<double>(extreme.smallest));
      }
    });
  });
  for (const double most : max_logits) out.max_logit = std::max(out.max_logit, most);
  return out;
}

CrossEntropySums cross_entropy_share_(at::Tensor& logits_NV, const at::Tensor& labels_N,
                                      const VocabShare& share, const at::Tensor& statistics_SN3,
                                      const ShareLoss& loss) {
  const std::int64_t rows = logits_NV.size(0);
  const std::int64_t words = logits_NV.size(1);
  CHECK(statistics_SN3.is_contiguous() &&
            statistics_SN3.numel() % (3 * std::max<std::int64_t>(rows, 1)) == 0,
        "statistics of {} numbers for {} rows", statistics_SN3.numel(), rows);
  const std::int64_t shares = rows == 0 ? 0 : statistics_SN3.numel() / (3 * rows);
  const auto* const labels = data<std::int64_t>(labels_N);
  const auto* const statistics = static_cast<const RowStatistics*>(statistics_SN3.const_data_ptr());
  std::vector<RowStatistics> merged(static_cast<std::size_t>(rows));
  dispatch(logits_NV.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const logits = mutable_data<T>(logits_NV);
    parallel_ranges(rows, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        T* const x = logits + r * words;
        if (labels[r] != kNotTrained) {
          RowStatistics& row = merged[static_cast<std::size_t>(r)];
          row = merge(statistics + r, shares, rows);
          const std::int64_t own =
              holds(share, words, labels[r]) ? labels[r] - share.begin : std::int64_t{-1};
          if (loss.gradient) gradient_of_row(x, words, own, row, loss);
        } else if (loss.gradient) {
          std::fill_n(x, words, T(0));
        }
      }
    });
  });
  CrossEntropySums sums;
  for (std::int64_t r = 0; r < rows; ++r) {
    if (labels[r] == kNotTrained) continue;
    const RowStatistics& row = merged[static_cast<std::size_t>(r)];
    const double lse = row.largest + std::log(row.sum);
    sums.loss += lse - row.at_label;
    sums.z += lse * lse;
    ++sums.tokens;
  }
  return sums;
}

}  // namespace quatrain::kernels
