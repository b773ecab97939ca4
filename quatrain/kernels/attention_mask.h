// SPDX-License-Identifier: Apache-2.0
// What the attention kernels need of the mask. A document is a segment of its sequence, and blocks
// are cut at segments, so that no block ever touches two documents; inside one the visible keys of
// a query are one run that moves with it: the band.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "quatrain/kernels/attention.h"

namespace quatrain::kernels {

// Keys [key_begin, key_end) of one sequence, one document; its queries stand at key positions
// [query_begin, query_end).
struct Segment {
  std::int64_t sequence, key_begin, key_end, query_begin, query_end;
};
// All segments that have keys and queries, in order. Throws BugError on a malformed mask.
std::vector<Segment> segments(std::int64_t batch, std::int64_t queries, std::int64_t keys,
                              const AttentionMask& mask);

// Key index of query 0.
inline std::int64_t first_query(std::int64_t queries, std::int64_t keys,
                                const AttentionMask& mask) {
  return mask.first_query.value_or(keys - queries);
}
// Whether segments leave some queries, or some keys, out.
struct LeftOut {
  bool queries, keys;
};
LeftOut left_out(std::int64_t batch, std::int64_t queries, std::int64_t keys,
                 const std::vector<Segment>& all);

// A block of queries against a block of keys, both counted from their blocks' beginnings: query i
// sees the keys (i + lead - window, i + lead].
struct Band {
  std::int64_t lead;    // position of query 0 minus position of key 0
  std::int64_t window;  // a large number without one
  std::int64_t queries, keys;

  std::int64_t key_begin(std::int64_t query) const {
    return std::clamp<std::int64_t>(query + lead - window + 1, 0, keys);
  }
  std::int64_t key_end(std::int64_t query) const {
    return std::clamp<std::int64_t>(query + lead + 1, 0, keys);
  }
  std::int64_t query_begin(std::int64_t key) const {
    return std::clamp<std::int64_t>(key - lead, 0, queries);
  }
  std::int64_t query_end(std::int64_t key) const {
    return std::clamp<std::int64_t>(key - lead + window, 0, queries);
  }
};

inline constexpr std::int64_t kNoWindow = std::int64_t{1} << 40;
inline std::int64_t window_or_all(const AttentionMask& mask) {
  return mask.window > 0 ? mask.window : kNoWindow;
}

}  // namespace quatrain::kernels
