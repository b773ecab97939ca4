// SPDX-License-Identifier: Apache-2.0
// FlashAttention-2's forward (arXiv:2307.08691, algorithm 1): for every block of queries the blocks
// of keys in order, with a running maximum and sum for each query. A job is one block of queries of
// one head; jobs share nothing, so threads take them as they come and the bits do not depend on how
// many there are.
#include <atomic>
#include <cmath>
#include <limits>

#include "quatrain/kernels/attention_tiles.h"
#include "quatrain/kernels/flops.h"
#include "quatrain/kernels/parallel.h"

namespace quatrain::kernels {

namespace {

struct QueryJob {
  const Segment* segment;
  std::int64_t begin, end;  // key positions of the block's queries
};

std::vector<QueryJob> query_jobs(const std::vector<Segment>& all) {
  std::vector<QueryJob> jobs;
  for (const Segment& s : all)
    for (std::int64_t begin = s.query_begin; begin < s.query_end; begin += kQueryBlock)
      jobs.push_back({&s, begin, std::min(begin + kQueryBlock, s.query_end)});
  return jobs;
}

template <typename T>
struct ForwardScratch {
  T *queries, *scores, *keys, *values, *out, *maximum, *sum, *rescale;

  static std::int64_t carve(const AttentionSizes& n, T* memory, ForwardScratch& s) {
    constexpr std::int64_t lanes = simd::kLanes<T>;
    const std::int64_t dp = simd::round_up(n.d, lanes);
    const std::int64_t dvp = simd::round_up(n.dv, lanes);
    const std::int64_t qp = simd::round_up(std::min(kQueryBlock, n.T), lanes);
    Scratch<T> scratch(memory);
    s.queries = scratch.take(dp * qp);
    s.scores = scratch.take(kKeyBlock * qp);
    s.keys = scratch.take(kKeyBlock * dp);
    s.values = scratch.take(kKeyBlock * dvp);
    s.out = scratch.take(qp * dvp);
    s.maximum = scratch.take(qp);
    s.sum = scratch.take(qp);
    s.rescale = scratch.take(qp);
    return scratch.used();
  }
};

// One register of query columns: scores become weights e^(s - maximum), and maximum, sum and the
// factor of what was summed before follow. Weights outside the band are zero.
template <typename T>
void online_softmax(const Band& band, std::int64_t column, std::int64_t qp,
                    const ForwardScratch<T>& s) {
  constexpr T lowest = -std::numeric_limits<T>::infinity();
  const auto [any, all] = column_keys<T>(band, column);
  T* scores = s.scores + column;
  const simd::Vec<T> before = simd::load(s.maximum + column);
  simd::Vec<T> maximum = before;
  for (std::int64_t key = any.begin; key < any.end; ++key) {
    simd::Vec<T> score = simd::load(scores + key * qp);
    if (key < all.begin || key >= all.end) {
      score = where_visible(band, key, column, score, lowest);
      simd::store(scores + key * qp, score);
    }
    maximum = simd::max(maximum, score);
  }
  // A query that has seen no key yet: any finite number will do.
  const simd::Vec<T> shift = maximum == simd::splat(lowest) ? simd::Vec<T>{} : maximum;
  const simd::Vec<T> rescale = simd::exp<T>(before - shift);
  simd::Vec<T> sum = simd::load(s.sum + column) * rescale;
  for (std::int64_t key = any.begin; key < any.end; ++key) {
    const simd::Vec<T> weight = simd::exp<T>(simd::load(scores + key * qp) - shift);
    simd::store(scores + key * qp, weight);
    sum += weight;
  }
  for (std::int64_t key = 0; key < any.begin; ++key) simd::store(scores + key * qp, simd::Vec<T>{});
  for (std::int64_t key = any.end; key < band.keys; ++key)
    simd::store(scores + key * qp, simd::Vec<T>{});
  simd::store(s.maximum + column, maximum);
  simd::store(s.sum + column, sum);
  simd::store(s.rescale + column, rescale);
}

// S: of the operands; O: of the output.
template <typename S, typename O>
class Forward {
 public:
  using T = Wide<S>;

  Forward(const AttentionSizes& n, double scale, const AttentionMask& mask)
      : n_(n),
        scale_(static_cast<T>(scale)),
        window_(window_or_all(mask)),
        first_query_(first_query(n.T, n.S, mask)) {}

  HeadView<const S> q, k, v;
  HeadView<O> out;
  T* lse_BHT;

  void run(const QueryJob& job, std::int64_t head, const ForwardScratch<T>& s) const {
    const std::int64_t sequence = job.segment->sequence, queries = job.end - job.begin;
    const std::int64_t first_row = job.begin - first_query_;
    pack_transposed<T>(q.at(sequence, first_row, head), q.row_stride, queries, n_.d, scale_,
                       s.queries);
    const std::int64_t qp = simd::round_up(queries, simd::kLanes<T>);
    std::fill_n(s.maximum, qp, -std::numeric_limits<T>::infinity());
    std::fill_n(s.sum, qp, T(0));
    std::fill_n(s.out, queries * width(), T(0));
    const std::int64_t origin = job.segment->key_begin;
    const std::int64_t lowest = std::max(origin, job.begin - window_ + 1);
    const std::int64_t end = std::min(job.end, job.segment->key_end);
    for (std::int64_t key = origin + (lowest - origin) / kKeyBlock * kKeyBlock; key < end;
         key += kKeyBlock)
      add_keys(job, head, key, std::min(kKeyBlock, end - key), qp, s);
    finish(sequence, first_row, head, queries, s);
  }

 private:
  std::int64_t width() const { return simd::round_up(n_.dv, simd::kLanes<T>); }

  void add_keys(const QueryJob& job, std::int64_t head, std::int64_t key, std::int64_t count,
                std::int64_t qp, const ForwardScratch<T>& s) const {
    const std::int64_t sequence = job.segment->sequence, kv_head = head / n_.group();
    const Band band{job.begin - key, window_, job.end - job.begin, count};
    const auto keys =
        padded_rows<T>(k.at(sequence, key, kv_head), k.row_stride, band.keys, n_.d, s.keys);
    score_block<T>(band, n_.d, {keys.data, keys.row_stride, 1}, s.queries, qp, s.scores);
    for (std::int64_t column = 0; column < qp; column += simd::kLanes<T>)
      online_softmax<T>(band, column, qp, s);
    for (std::int64_t i = 0; i < band.queries; ++i)
      if (s.rescale[i] != T(1))
        for (std::int64_t e = 0; e < width(); ++e) s.out[i * width() + e] *= s.rescale[i];
    const auto values =
        padded_rows<T>(v.at(sequence, key, kv_head), v.row_stride, band.keys, n_.dv, s.values);
    add_over_keys<T>(band, s.scores, qp, values, width(), {s.out, width()});
  }

  void finish(std::int64_t sequence, std::int64_t first_row, std::int64_t head,
              std::int64_t queries, const ForwardScratch<T>& s) const {
    T* lse = lse_BHT + (sequence * n_.H + head) * n_.T + first_row;
    for (std::int64_t i = 0; i < queries; ++i) {
      const T inverse = s.sum[i] > T(0) ? T(1) / s.sum[i] : T(0);
      lse[i] = s.maximum[i] + std::log(s.sum[i]);
      simd::for_each_vector<T>(n_.dv, [&](std::int64_t e, const auto& io) {
        io.store(out.at(sequence, first_row + i, head) + e,
                 simd::load(s.out + i * width() + e) * inverse);
      });
    }
  }

  AttentionSizes n_;
  T scale_;
  std::int64_t window_;
  std::int64_t first_query_;
};

template <typename S, typename O>
void forward(const Forward<S, O>& kernel, const AttentionSizes& n, const std::vector<Segment>& all,
             const at::Tensor& like) {
  using T = Wide<S>;
  const std::vector<QueryJob> jobs = query_jobs(all);
  const std::int64_t total = static_cast<std::int64_t>(jobs.size()) * n.H;
  const std::int64_t pieces = std::min<std::int64_t>(num_threads(), total);
  ForwardScratch<T> layout;
  const ScratchTensor<T> scratch(like, pieces, ForwardScratch<T>::carve(n, nullptr, layout));
  std::atomic<std::int64_t> next{0};
  parallel_pieces(static_cast<int>(pieces), [&](int piece) {
    ForwardScratch<T> mine;
    ForwardScratch<T>::carve(n, scratch.piece(piece), mine);
    for (std::int64_t i = next++; i < total; i = next++) {
      const std::int64_t job = total - 1 - i;  // the longest of a sequence first
      kernel.run(jobs[static_cast<std::size_t>(job / n.H)], job % n.H, mine);
    }
  });
}

// As attention(); the output of type Out<S>.
template <template <typename> typename Out>
AttentionOut attend(const at::Tensor& q_BTHd, const at::Tensor& k_BSKd, const at::Tensor& v_BSKd,
                    double scale, const AttentionMask& mask, at::ScalarType out_dtype) {
  const AttentionSizes n = attention_sizes(q_BTHd, k_BSKd, v_BSKd);
  const at::ScalarType dtype = q_BTHd.scalar_type();
  const AttentionOut result{q_BTHd.new_empty({n.B, n.T, n.H, n.dv}, at::TensorOptions(out_dtype)),
                            q_BTHd.new_empty({n.B, n.H, n.T}, at::TensorOptions(wide(dtype)))};
  const std::vector<Segment> all = segments(n.B, n.T, n.S, mask);
  if (left_out(n.B, n.T, n.S, all).queries) {
    result.out_BTHd.zero_();
    result.lse_BHT.fill_(-std::numeric_limits<double>::infinity());
  }
  dispatch(dtype, [&](auto tag) {
    using S = typename decltype(tag)::type;
    Forward<S, Out<S>> kernel(n, scale, mask);
    kernel.q = head_view<S>(q_BTHd);
    kernel.k = head_view<S>(k_BSKd);
    kernel.v = head_view<S>(v_BSKd);
    kernel.out = mutable_head_view<Out<S>>(result.out_BTHd);
    kernel.lse_BHT = mutable_data<Wide<S>>(result.lse_BHT);
    forward(kernel, n, all, q_BTHd);
  });
  count_flops(visible_pairs(n.B, n.T, n.S, mask) * n.H * 2 * (n.d + n.dv));
  return result;
}

template <typename S>
using Same = S;

}  // namespace

AttentionOut attention(const at::Tensor& q_BTHd, const at::Tensor& k_BSKd, const at::Tensor& v_BSKd,
                       double scale, const AttentionMask& mask) {
  return attend<Same>(q_BTHd, k_BSKd, v_BSKd, scale, mask, q_BTHd.scalar_type());
}

AttentionOut attention_part(const at::Tensor& q_BTHd, const at::Tensor& k_BSKd,
                            const at::Tensor& v_BSKd, double scale, const AttentionMask& mask) {
  return attend<Wide>(q_BTHd, k_BSKd, v_BSKd, scale, mask, wide(q_BTHd.scalar_type()));
}

}  // namespace quatrain::kernels
