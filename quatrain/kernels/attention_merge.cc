// SPDX-License-Identifier: Apache-2.0
// Two softmaxes over different keys as one: each weighs as much as its sum of exponentials.
#include <cmath>

#include "quatrain/kernels/attention_tiles.h"
#include "quatrain/kernels/parallel.h"

namespace quatrain::kernels {
namespace {

template <typename T>
class Merge {
 public:
  Merge(AttentionOut& all, const AttentionOut& part)
      : heads_(all.out_BTHd.size(2)),
        queries_(all.out_BTHd.size(1)),
        width_(all.out_BTHd.size(3)),
        all_(mutable_head_view<T>(all.out_BTHd)),
        part_(head_view<T>(part.out_BTHd)),
        lse_BHT_(mutable_data<T>(all.lse_BHT)),
        part_lse_BHT_(data<T>(part.lse_BHT)) {}

  // Query `row` of all sequences' queries.
  void run(std::int64_t row) const {
    const std::int64_t sequence = row / queries_, query = row % queries_;
    for (std::int64_t head = 0; head < heads_; ++head) {
      const std::int64_t at = (sequence * heads_ + head) * queries_ + query;
      const T part = part_lse_BHT_[at];
      T& lse = lse_BHT_[at];
      if (part == kNothing) continue;
      const T largest = std::max(lse, part);
      const T sum = largest + std::log(std::exp(lse - largest) + std::exp(part - largest));
      blend(all_.at(sequence, query, head), std::exp(lse - sum), part_.at(sequence, query, head),
            std::exp(part - sum));
      lse = sum;
    }
  }

 private:
  static constexpr T kNothing = -std::numeric_limits<T>::infinity();

  void blend(T* x, T x_weight, const T* y, T y_weight) const {
    simd::for_each_vector<T>(width_, [&](std::int64_t i, const auto& io) {
      io.store(x + i, io.load(x + i) * x_weight + io.load(y + i) * y_weight);
    });
  }

  std::int64_t heads_, queries_, width_;
  HeadView<T> all_;
  HeadView<const T> part_;
  T* lse_BHT_;
  const T* part_lse_BHT_;
};

}  // namespace

void merge_attention(AttentionOut& all, const AttentionOut& part) {
  CHECK(all.out_BTHd.sizes() == part.out_BTHd.sizes() &&
            all.lse_BHT.sizes() == part.lse_BHT.sizes() && all.lse_BHT.is_contiguous() &&
            part.lse_BHT.is_contiguous() &&
            all.out_BTHd.scalar_type() == all.lse_BHT.scalar_type() &&
            all.out_BTHd.scalar_type() == part.out_BTHd.scalar_type(),
        "merge_attention: parts are wide and of the same sizes");
  dispatch(all.lse_BHT.scalar_type(), [&](auto tag) {
    const Merge<Wide<typename decltype(tag)::type>> merge(all, part);
    const std::int64_t rows = all.out_BTHd.size(0) * all.out_BTHd.size(1);
    parallel_ranges(rows, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) merge.run(row);
    });
  });
}

}  // namespace quatrain::kernels
