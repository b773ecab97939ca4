// SPDX-License-Identifier: Apache-2.0
// Shapes that attention accepts, segments of packed sequences, and the count of visible pairs.
#include "quatrain/kernels/attention_mask.h"

#include "quatrain/kernels/attention_tiles.h"

namespace quatrain::kernels {

namespace {

struct Run {
  std::int64_t id, begin, end;
};

// The documents of one sequence; null ids: one document.
std::vector<Run> runs_of(const std::int64_t* ids, std::int64_t count, std::int64_t sequence) {
  if (ids == nullptr) return {{0, 0, count}};
  std::vector<Run> runs;
  for (std::int64_t begin = 0; begin < count;) {
    std::int64_t end = begin + 1;
    while (end < count && ids[end] == ids[begin]) ++end;
    CHECK(end == count || ids[end] > ids[begin],
          "document ids of sequence {} decrease at position {}: {} after {}", sequence, end,
          ids[end], ids[begin]);
    runs.push_back({ids[begin], begin, end});
    begin = end;
  }
  return runs;
}

// Appends what the keys and the queries of one sequence have in common.
void append_segments(std::vector<Segment>& out, std::int64_t sequence, const std::vector<Run>& keys,
                     const std::vector<Run>& queries, std::int64_t first) {
  std::size_t k = 0;
  for (const Run& q : queries) {
    while (k < keys.size() && keys[k].id < q.id) ++k;
    if (k == keys.size()) return;
    if (keys[k].id == q.id && q.begin < q.end && keys[k].begin < keys[k].end) {
      out.push_back({sequence, keys[k].begin, keys[k].end, first + q.begin, first + q.end});
    }
  }
}

at::Tensor document_ids(const at::Tensor& ids, std::int64_t batch, std::int64_t count) {
  CHECK(ids.dim() == 2 && ids.size(0) == batch && ids.size(1) == count &&
            ids.scalar_type() == at::kLong,
        "document ids are int64 [{}, {}]", batch, count);
  return ids.contiguous();
}

// Pairs of query i < queries and key j < keys with j <= i < j + window.
std::int64_t pairs_below(std::int64_t queries, std::int64_t keys, std::int64_t window) {
  const std::int64_t seen = std::max<std::int64_t>(0, std::min(queries, keys));
  const std::int64_t full = std::clamp<std::int64_t>(queries - window, 0, seen);
  return full * window + (seen - full) * (2 * queries - seen - full + 1) / 2;
}

}  // namespace

std::vector<Segment> segments(std::int64_t batch, std::int64_t queries, std::int64_t keys,
                              const AttentionMask& mask) {
  const std::int64_t first = first_query(queries, keys, mask);
  CHECK(first >= 0, "{} queries against {} keys: the first query stands at key {}", queries, keys,
        first);
  CHECK(mask.window >= 0, "attention window {} is negative", mask.window);
  at::Tensor of_keys, of_queries;
  if (mask.documents_BS.defined()) {
    of_keys = document_ids(mask.documents_BS, batch, keys);
    CHECK(mask.documents_BT.defined() == mask.first_query.has_value(),
          "queries have documents of their own where they stand elsewhere, and only there");
    of_queries = mask.documents_BT.defined() ? document_ids(mask.documents_BT, batch, queries)
                                             : of_keys.narrow(1, first, queries).contiguous();
  }
  std::vector<Segment> out;
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto runs = [b](const at::Tensor& ids, std::int64_t count) {
      return runs_of(ids.defined() ? data<std::int64_t>(ids) + b * count : nullptr, count, b);
    };
    append_segments(out, b, runs(of_keys, keys), runs(of_queries, queries), first);
  }
  return out;
}

LeftOut left_out(std::int64_t batch, std::int64_t queries, std::int64_t keys,
                 const std::vector<Segment>& all) {
  std::int64_t seen_queries = 0, seen_keys = 0;
  for (const Segment& s : all) {
    seen_queries += s.query_end - s.query_begin;
    seen_keys += s.key_end - s.key_begin;
  }
  return {seen_queries < batch * queries, seen_keys < batch * keys};
}

std::int64_t visible_pairs(std::int64_t batch, std::int64_t queries, std::int64_t keys,
                           const AttentionMask& mask) {
  const std::int64_t window = window_or_all(mask);
  std::int64_t pairs = 0;
  for (const Segment& s : segments(batch, queries, keys, mask)) {
    const std::int64_t length = s.key_end - s.key_begin;
    pairs += pairs_below(s.query_end - s.key_begin, length, window) -
             pairs_below(s.query_begin - s.key_begin, length, window);
  }
  return pairs;
}

namespace {
void check_operand(const at::Tensor& x, const char* what) {
  CHECK(x.dim() == 4, "attention: {} has {} dims, not 4", what, x.dim());
  CHECK(x.size(3) == 1 || x.stride(3) == 1, "attention: the last dim of {} has stride {}, not 1",
        what, x.stride(3));
}
}  // namespace

AttentionSizes attention_sizes(const at::Tensor& q_BTHd, const at::Tensor& k_BSKd,
                               const at::Tensor& v_BSKd) {
  check_operand(q_BTHd, "q");
  check_operand(k_BSKd, "k");
  check_operand(v_BSKd, "v");
  const AttentionSizes n{.B = q_BTHd.size(0),
                         .T = q_BTHd.size(1),
                         .S = k_BSKd.size(1),
                         .H = q_BTHd.size(2),
                         .K = k_BSKd.size(2),
                         .d = q_BTHd.size(3),
                         .dv = v_BSKd.size(3)};
  CHECK(k_BSKd.size(0) == n.B && v_BSKd.size(0) == n.B, "attention: batches {} {} {} differ", n.B,
        k_BSKd.size(0), v_BSKd.size(0));
  CHECK(v_BSKd.size(1) == n.S && v_BSKd.size(2) == n.K && k_BSKd.size(3) == n.d,
        "attention: k and v, or the head dims of q ({}) and k ({}), do not match", n.d,
        k_BSKd.size(3));
  CHECK(n.K > 0 && n.H % n.K == 0, "attention: {} kv heads do not divide {} heads", n.K, n.H);
  CHECK(
      q_BTHd.scalar_type() == k_BSKd.scalar_type() && q_BTHd.scalar_type() == v_BSKd.scalar_type(),
      "attention: q, k, v differ in dtype");
  return n;
}

}  // namespace quatrain::kernels
