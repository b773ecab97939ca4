// SPDX-License-Identifier: Apache-2.0
// FlashAttention-2's backward (arXiv:2307.08691, algorithm 2): weights again from the scores and
// the kept log-sum-exp, then dv, dk and dq. Every element is one chain of sums: dq over its keys in
// order, dk and dv over the heads of their group and the queries in order. Two ways to share the
// work keep exactly these chains, so the bits are equal: a segment and kv head a job (each block
// once), or, when those are too few for the threads, key blocks first and query blocks after.
#include <atomic>

#include "quatrain/kernels/attention_tiles.h"
#include "quatrain/kernels/flops.h"
#include "quatrain/kernels/parallel.h"

namespace quatrain::kernels {

namespace {

template <typename T>
struct BackwardScratch {
  T *queries, *douts, *query_rows, *dout_rows, *lse, *delta;  // of a block of queries
  T *key_rows, *value_rows;                                   // of a block of keys
  T *weights, *dscores;                                       // [keys, qp]
  T *dq, *dk, *dv;                                            // sums; dk, dv of `keys` rows

  static std::int64_t carve(const AttentionSizes& n, std::int64_t keys, T* memory,
                            BackwardScratch& s) {
    constexpr std::int64_t lanes = simd::kLanes<T>;
    const std::int64_t dp = simd::round_up(n.d, lanes), dvp = simd::round_up(n.dv, lanes);
    const std::int64_t qp = simd::round_up(std::min(kQueryBlock, n.T), lanes);
    Scratch<T> scratch(memory);
    s.queries = scratch.take(dp * qp);
    s.douts = scratch.take(dvp * qp);
    s.query_rows = scratch.take(qp * dp);
    s.dout_rows = scratch.take(qp * dvp);
    s.lse = scratch.take(qp);
    s.delta = scratch.take(qp);
    s.key_rows = scratch.take(kKeyBlock * dp);
    s.value_rows = scratch.take(kKeyBlock * dvp);
    s.weights = scratch.take(kKeyBlock * qp);
    s.dscores = scratch.take(kKeyBlock * qp);
    s.dq = scratch.take(qp * dp);
    s.dk = scratch.take(keys * dp);
    s.dv = scratch.take(keys * dvp);
    return scratch.used();
  }
};

// weights [keys, qp]: scores become e^(s - lse); dscores: dweights become weights (dw - delta).
// Zero outside the band.
template <typename T>
void weights_and_dscores(const Band& band, std::int64_t column, std::int64_t qp,
                         const BackwardScratch<T>& s) {
  const auto [any, all] = column_keys<T>(band, column);
  const simd::Vec<T> lse = simd::load(s.lse + column), delta = simd::load(s.delta + column);
  T *weights = s.weights + column, *dscores = s.dscores + column;
  for (std::int64_t key = any.begin; key < any.end; ++key) {
    simd::Vec<T> weight = simd::exp<T>(simd::load(weights + key * qp) - lse);
    if (key < all.begin || key >= all.end) weight = where_visible(band, key, column, weight, T(0));
    simd::store(weights + key * qp, weight);
    simd::store(dscores + key * qp, weight * (simd::load(dscores + key * qp) - delta));
  }
  const auto clear = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t key = begin; key < end; ++key) {
      simd::store(weights + key * qp, simd::Vec<T>{});
      simd::store(dscores + key * qp, simd::Vec<T>{});
    }
  };
  clear(0, any.begin);
  clear(any.end, band.keys);
}

template <typename S>
class Backward {
 public:
  using T = Wide<S>;
  using Scratch = BackwardScratch<T>;

  Backward(const AttentionSizes& n, double scale, const AttentionMask& mask)
      : n_(n),
        scale_(static_cast<T>(scale)),
        window_(window_or_all(mask)),
        first_query_(first_query(n.T, n.S, mask)) {}

  HeadView<const S> dout, q, k, v, out;
  HeadView<S> dq, dk, dv;
  const T* lse_BHT;

  // All gradients of one segment and kv head.
  void run_all(const Segment& segment, std::int64_t kv_head, const Scratch& s) const {
    const std::int64_t keys = segment.key_end - segment.key_begin;
    clear_key_sums(keys, s);
    for (std::int64_t head = kv_head * n_.group(); head < (kv_head + 1) * n_.group(); ++head)
      for (std::int64_t query = segment.query_begin; query < segment.query_end;
           query += kQueryBlock)
        run_queries(segment, head, query, s, true);
    write_keys(segment.sequence, segment.key_begin, kv_head, keys, s);
  }

  // dq of one block of queries; with `sum_keys` also the block's part of the segment's dk and dv.
  void run_queries(const Segment& segment, std::int64_t head, std::int64_t query, const Scratch& s,
                   bool sum_keys) const {
    const Queries block = load_queries(segment, query, head, s);
    std::fill_n(s.dq, block.count * key_width(), T(0));
    const std::int64_t origin = segment.key_begin;
    const std::int64_t lowest = std::max(origin, query - window_ + 1);
    for (std::int64_t key = origin + (lowest - origin) / kKeyBlock * kKeyBlock;
         key < std::min(query + block.count, segment.key_end); key += kKeyBlock) {
      const Keys keys = load_keys(segment, key, head / n_.group(), s);
      const Band band{query - key, window_, block.count, keys.count};
      score_gradients(band, block, keys, s);
      add_over_keys<T>(band, s.dscores, block.padded, keys.keys, key_width(), {s.dq, key_width()});
      if (sum_keys) add_key_sums(band, block, key - origin, s);
    }
    for (std::int64_t i = 0; i < block.count; ++i)
      write_row(s.dq + i * key_width(), n_.d, scale_,
                dq.at(segment.sequence, query - first_query_ + i, head));
  }

  // dk and dv of the block of keys that begins at `key`.
  void run_keys(const Segment& segment, std::int64_t kv_head, std::int64_t key,
                const Scratch& s) const {
    const Keys keys = load_keys(segment, key, kv_head, s);
    clear_key_sums(keys.count, s);
    const std::int64_t skipped =
        std::max<std::int64_t>(0, key - segment.query_begin) / kQueryBlock * kQueryBlock;
    const std::int64_t end = std::min(segment.query_end, key + keys.count - 1 + window_);
    for (std::int64_t head = kv_head * n_.group(); head < (kv_head + 1) * n_.group(); ++head)
      for (std::int64_t query = segment.query_begin + skipped; query < end; query += kQueryBlock) {
        const Queries block = load_queries(segment, query, head, s);
        const Band band{query - key, window_, block.count, keys.count};
        score_gradients(band, block, keys, s);
        add_key_sums(band, block, 0, s);
      }
    write_keys(segment.sequence, key, kv_head, keys.count, s);
  }

 private:
  struct Queries {
    std::int64_t count, padded;
    simd::RowBlock<const T> queries, douts;
  };
  struct Keys {
    std::int64_t count;
    simd::RowBlock<const T> keys, values;
  };
  std::int64_t key_width() const { return simd::round_up(n_.d, simd::kLanes<T>); }
  std::int64_t value_width() const { return simd::round_up(n_.dv, simd::kLanes<T>); }

  // `query` is a key position, as everywhere here.
  Queries load_queries(const Segment& segment, std::int64_t query, std::int64_t head,
                       const Scratch& s) const {
    const std::int64_t count = std::min(kQueryBlock, segment.query_end - query);
    const std::int64_t row = query - first_query_;
    const S* q_rows = q.at(segment.sequence, row, head);
    const S* dout_rows = dout.at(segment.sequence, row, head);
    pack_transposed<T>(q_rows, q.row_stride, count, n_.d, scale_, s.queries);
    pack_transposed<T>(dout_rows, dout.row_stride, count, n_.dv, T(1), s.douts);
    const std::int64_t padded = simd::round_up(count, simd::kLanes<T>);
    const T* lse = lse_BHT + (segment.sequence * n_.H + head) * n_.T + row;
    for (std::int64_t i = 0; i < padded; ++i) {
      s.lse[i] = i < count ? lse[i] : T(0);
      s.delta[i] = i < count ? dot(dout_rows + i * dout.row_stride,
                                   out.at(segment.sequence, row + i, head), n_.dv)
                             : T(0);
    }
    return {count, padded, padded_rows<T>(q_rows, q.row_stride, count, n_.d, s.query_rows),
            padded_rows<T>(dout_rows, dout.row_stride, count, n_.dv, s.dout_rows)};
  }

  Keys load_keys(const Segment& segment, std::int64_t key, std::int64_t kv_head,
                 const Scratch& s) const {
    const std::int64_t count = std::min(kKeyBlock, segment.key_end - key);
    return {
        count,
        padded_rows<T>(k.at(segment.sequence, key, kv_head), k.row_stride, count, n_.d, s.key_rows),
        padded_rows<T>(v.at(segment.sequence, key, kv_head), v.row_stride, count, n_.dv,
                       s.value_rows)};
  }

  static T dot(const S* a, const S* b, std::int64_t n) {
    simd::Vec<T> sum{};
    simd::for_each_vector<T>(n, [&](std::int64_t i, const auto& io) {
      sum = simd::fused(io.load(a + i), io.load(b + i), sum);
    });
    return simd::sum_lanes<T>(sum);
  }

  // Fills the block's weights and dscores.
  void score_gradients(const Band& band, const Queries& block, const Keys& keys,
                       const Scratch& s) const {
    score_block<T>(band, n_.d, {keys.keys.data, keys.keys.row_stride, 1}, s.queries, block.padded,
                   s.weights);
    score_block<T>(band, n_.dv, {keys.values.data, keys.values.row_stride, 1}, s.douts,
                   block.padded, s.dscores);
    for (std::int64_t column = 0; column < block.padded; column += simd::kLanes<T>)
      weights_and_dscores<T>(band, column, block.padded, s);
  }

  void add_key_sums(const Band& band, const Queries& block, std::int64_t first_key,
                    const Scratch& s) const {
    add_over_queries<T>(band, s.weights, block.padded, block.douts, value_width(),
                        {s.dv + first_key * value_width(), value_width()});
    add_over_queries<T>(band, s.dscores, block.padded, block.queries, key_width(),
                        {s.dk + first_key * key_width(), key_width()});
  }

  void clear_key_sums(std::int64_t keys, const Scratch& s) const {
    std::fill_n(s.dk, keys * key_width(), T(0));
    std::fill_n(s.dv, keys * value_width(), T(0));
  }
  void write_keys(std::int64_t sequence, std::int64_t key, std::int64_t kv_head, std::int64_t keys,
                  const Scratch& s) const {
    for (std::int64_t i = 0; i < keys; ++i) {
      write_row(s.dk + i * key_width(), n_.d, scale_, dk.at(sequence, key + i, kv_head));
      write_row(s.dv + i * value_width(), n_.dv, T(1), dv.at(sequence, key + i, kv_head));
    }
  }
  static void write_row(const T* sum, std::int64_t n, T factor, S* out) {
    simd::for_each_vector<T>(n, [&](std::int64_t e, const auto& io) {
      io.store(out + e, simd::load(sum + e) * factor);
    });
  }

  AttentionSizes n_;
  T scale_;
  std::int64_t window_;
  std::int64_t first_query_;
};

// Jobs [0, jobs) on the team, each with its thread's scratch of `keys` summed keys.
template <typename T, typename Body>
void share_jobs(const at::Tensor& like, const AttentionSizes& n, std::int64_t keys,
                std::int64_t jobs, const Body& body) {
  const std::int64_t pieces = std::min<std::int64_t>(num_threads(), jobs);
  BackwardScratch<T> layout;
  const ScratchTensor<T> scratch(like, pieces, BackwardScratch<T>::carve(n, keys, nullptr, layout));
  std::atomic<std::int64_t> next{0};
  parallel_pieces(static_cast<int>(pieces), [&](int piece) {
    BackwardScratch<T> mine;
    BackwardScratch<T>::carve(n, keys, scratch.piece(piece), mine);
    for (std::int64_t i = next++; i < jobs; i = next++) body(i, mine);
  });
}

struct Block {
  const Segment* segment;
  std::int64_t begin;
};
enum class Side : std::uint8_t { kQueries, kKeys };
std::vector<Block> blocks(const std::vector<Segment>& all, Side side) {
  std::vector<Block> out;
  for (const Segment& s : all) {
    const bool keys = side == Side::kKeys;
    const std::int64_t end = keys ? s.key_end : s.query_end;
    for (std::int64_t at = keys ? s.key_begin : s.query_begin; at < end;
         at += keys ? kKeyBlock : kQueryBlock)
      out.push_back({&s, at});
  }
  return out;
}

template <typename S>
void backward(const Backward<S>& kernel, const AttentionSizes& n, const std::vector<Segment>& all,
              const at::Tensor& like) {
  using T = Wide<S>;
  const auto index = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  std::int64_t longest = 0;
  for (const Segment& s : all) longest = std::max(longest, s.key_end - s.key_begin);
  const std::int64_t whole_jobs = static_cast<std::int64_t>(all.size()) * n.K;
  if (whole_jobs >= num_threads())
    return share_jobs<T>(like, n, longest, whole_jobs, [&](std::int64_t job, const auto& scratch) {
      kernel.run_all(all[index(job / n.K)], job % n.K, scratch);
    });
  const std::vector<Block> keys = blocks(all, Side::kKeys), queries = blocks(all, Side::kQueries);
  share_jobs<T>(like, n, kKeyBlock, static_cast<std::int64_t>(keys.size()) * n.K,
                [&](std::int64_t job, const auto& scratch) {
                  const Block& block = keys[index(job / n.K)];
                  kernel.run_keys(*block.segment, job % n.K, block.begin, scratch);
                });
  share_jobs<T>(like, n, kKeyBlock, static_cast<std::int64_t>(queries.size()) * n.H,
                [&](std::int64_t job, const auto& scratch) {
                  const Block& block = queries[index(job / n.H)];
                  kernel.run_queries(*block.segment, job % n.H, block.begin, scratch, false);
                });
}

}  // namespace

void attention_backward(const at::Tensor& dout_BTHd, const at::Tensor& q_BTHd,
                        const at::Tensor& k_BSKd, const at::Tensor& v_BSKd,
                        const AttentionOut& forward, double scale, const AttentionMask& mask,
                        at::Tensor& dq_BTHd, at::Tensor& dk_BSKd, at::Tensor& dv_BSKd) {
  const AttentionSizes n = attention_sizes(q_BTHd, k_BSKd, v_BSKd);
  attention_sizes(dq_BTHd, dk_BSKd, dv_BSKd);
  CHECK(dq_BTHd.sizes() == q_BTHd.sizes() && dk_BSKd.sizes() == k_BSKd.sizes() &&
            dv_BSKd.sizes() == v_BSKd.sizes() && dout_BTHd.sizes() == forward.out_BTHd.sizes(),
        "attention_backward: a gradient's shape is not its tensor's");
  CHECK(dout_BTHd.size(3) == 1 || dout_BTHd.stride(3) == 1, "dout's last dim is strided");
  const std::vector<Segment> all = segments(n.B, n.T, n.S, mask);
  const LeftOut without = left_out(n.B, n.T, n.S, all);  // no job writes these
  if (without.queries) dq_BTHd.zero_();
  if (without.keys) {
    dk_BSKd.zero_();
    dv_BSKd.zero_();
  }
  const at::Tensor lse = forward.lse_BHT.contiguous();
  dispatch(q_BTHd.scalar_type(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    Backward<S> kernel(n, scale, mask);
    kernel.dout = head_view<S>(dout_BTHd);
    kernel.q = head_view<S>(q_BTHd);
    kernel.k = head_view<S>(k_BSKd);
    kernel.v = head_view<S>(v_BSKd);
    kernel.out = head_view<S>(forward.out_BTHd);
    kernel.dq = mutable_head_view<S>(dq_BTHd);
    kernel.dk = mutable_head_view<S>(dk_BSKd);
    kernel.dv = mutable_head_view<S>(dv_BSKd);
    kernel.lse_BHT = data<Wide<S>>(lse);
    backward<S>(kernel, n, all, q_BTHd);
  });
  count_flops(visible_pairs(n.B, n.T, n.S, mask) * n.H * 4 * (n.d + n.dv));
}

}  // namespace quatrain::kernels
