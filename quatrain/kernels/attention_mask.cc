// SPDX-License-Identifier: Apache-2.0
// Shapes that attention accepts, segments of packed sequences, and the count of visible pairs.
#include "quatrain/kernels/attention_mask.h"

#include "quatrain/kernels/attention_tiles.h"

namespace quatrain::kernels {

namespace {

// Appends the documents of one sequence, given its row of ids (null: one document).
void append_segments(std::vector<Segment>& out, std::int64_t sequence, std::int64_t keys,
                     std::int64_t first_query, const std::int64_t* ids) {
  for (std::int64_t begin = 0; begin < keys;) {
    std::int64_t end = keys;
    if (ids != nullptr) {
      end = begin + 1;
      while (end < keys && ids[end] == ids[begin]) ++end;
      CHECK(end == keys || ids[end] > ids[begin],
            "document ids of sequence {} decrease at position {}: {} after {}", sequence, end,
            ids[end], ids[begin]);
    }
    if (end > first_query) out.push_back({sequence, begin, end, std::max(begin, first_query)});
    begin = end;
  }
}

}  // namespace

std::vector<Segment> segments(std::int64_t batch, std::int64_t queries, std::int64_t keys,
                              const AttentionMask& mask) {
  CHECK(queries <= keys, "{} queries against {} keys: queries are the last keys' positions",
        queries, keys);
  CHECK(mask.window >= 0, "attention window {} is negative", mask.window);
  std::vector<Segment> out;
  at::Tensor ids;
  if (mask.documents_BS.defined()) {
    CHECK(mask.documents_BS.dim() == 2 && mask.documents_BS.size(0) == batch &&
              mask.documents_BS.size(1) == keys && mask.documents_BS.scalar_type() == at::kLong,
          "document ids are int64 [{}, {}]", batch, keys);
    ids = mask.documents_BS.contiguous();
  }
  for (std::int64_t b = 0; b < batch; ++b)
    append_segments(out, b, keys, keys - queries,
                    ids.defined() ? data<std::int64_t>(ids) + b * keys : nullptr);
  return out;
}

std::int64_t visible_pairs(std::int64_t batch, std::int64_t queries, std::int64_t keys,
                           const AttentionMask& mask) {
  const std::int64_t window = window_or_all(mask);
  std::int64_t pairs = 0;
  for (const Segment& s : segments(batch, queries, keys, mask)) {
    // Queries see 1, 2, ... keys from the segment's beginning, then `window` each.
    const std::int64_t first = s.query_begin - s.key_begin + 1;
    const std::int64_t last = s.key_end - s.key_begin;
    const std::int64_t growing = std::max<std::int64_t>(0, std::min(last, window) - first + 1);
    const std::int64_t top = first + growing - 1;
    pairs += (first + top) * growing / 2 + (last - first + 1 - growing) * window;
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
