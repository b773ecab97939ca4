// SPDX-License-Identifier: Apache-2.0
// Merging: pieces that are one token by a table made at load time, others by a bounded cache; what
// is new by scanning ranks when short, by a heap over a linked list when long (n log n).
#include "quatrain/data/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>

#include "quatrain/base/error.h"
#include "quatrain/base/rng.h"

namespace quatrain {
namespace {

constexpr std::size_t kShortPiece = 48;      // symbols up to which scanning beats the heap
constexpr std::size_t kCachedBytes = 128;    // longest piece that the cache keeps
constexpr std::size_t kCachedWords = 16384;  // per shard; full: emptied
constexpr std::int32_t kNoRank = std::numeric_limits<std::int32_t>::max();

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32U) |
         static_cast<std::uint32_t>(right);
}

std::uint64_t mix_key(std::uint64_t key) {
  key *= 0x9E3779B97F4A7C15U;
  return key ^ (key >> 29U);
}

std::uint64_t hash_bytes(std::string_view bytes) {
  std::uint64_t hash = 0xCBF29CE484222325U ^ bytes.size();
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  return mix_key(hash);
}

}  // namespace

BpeMerger::BpeMerger(std::vector<std::string> tokens, const std::vector<Merge>& merges,
                     bool ignore_merges)
    : tokens_(std::move(tokens)),
      pairs_(std::bit_ceil(2 * merges.size() + 2)),
      words_(std::bit_ceil(2 * tokens_.size() + 2)) {
  byte_ids_.fill(-1);
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    if (tokens_[id].size() != 1) continue;
    byte_ids_[static_cast<unsigned char>(tokens_[id][0])] = static_cast<std::int32_t>(id);
  }
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    insert_pair(merges[rank], static_cast<std::int32_t>(rank));
  }
  const auto spelled = [&](const std::string& token) {
    return std::all_of(token.begin(), token.end(),
                       [&](char c) { return byte_ids_[static_cast<unsigned char>(c)] >= 0; });
  };
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    if (tokens_[id].empty()) continue;
    const auto self = static_cast<std::int32_t>(id);
    if (ignore_merges ||
        (spelled(tokens_[id]) && merge(tokens_[id]) == std::vector<std::int32_t>{self})) {
      insert_word(tokens_[id], self);
    }
  }
}

void BpeMerger::insert_pair(const Merge& merge, std::int32_t rank) {
  const std::uint64_t key = pair_key(merge.left, merge.right);
  std::size_t at = mix_key(key) & (pairs_.size() - 1);
  while (pairs_[at].key != kNoKey && pairs_[at].key != key) at = (at + 1) & (pairs_.size() - 1);
  pairs_[at] = {key, rank, merge.merged};
}

const BpeMerger::Pair* BpeMerger::find_pair(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = pair_key(left, right);
  std::size_t at = mix_key(key) & (pairs_.size() - 1);
  while (pairs_[at].key != key) {
    if (pairs_[at].key == kNoKey) return nullptr;
    at = (at + 1) & (pairs_.size() - 1);
  }
  return &pairs_[at];
}

void BpeMerger::insert_word(std::string_view bytes, std::int32_t id) {
  const std::uint64_t hash = hash_bytes(bytes);
  std::size_t at = hash & (words_.size() - 1);
  while (words_[at].id >= 0) at = (at + 1) & (words_.size() - 1);
  words_[at] = {hash, id};
}

std::int32_t BpeMerger::find_word(std::string_view bytes, std::uint64_t hash) const {
  std::size_t at = hash & (words_.size() - 1);
  while (words_[at].id >= 0) {
    if (words_[at].hash == hash && tokens_[static_cast<std::size_t>(words_[at].id)] == bytes) {
      return words_[at].id;
    }
    at = (at + 1) & (words_.size() - 1);
  }
  return -1;
}

void BpeMerger::encode(std::string_view piece, std::vector<std::int64_t>& ids) const {
  const std::uint64_t hash = hash_bytes(piece);
  if (const std::int32_t id = find_word(piece, hash); id >= 0) {
    ids.push_back(id);
    return;
  }
  if (piece.size() > kCachedBytes) {
    const std::vector<std::int32_t> merged = merge(piece);
    ids.insert(ids.end(), merged.begin(), merged.end());
    return;
  }
  CacheShard& shard = cache_[(hash >> 48U) % cache_.size()];
  const std::string word(piece);
  {
    const std::lock_guard lock(shard.mutex);
    if (const auto found = shard.words.find(word); found != shard.words.end()) {
      ids.insert(ids.end(), found->second.begin(), found->second.end());
      return;
    }
  }
  std::vector<std::int32_t> merged = merge(piece);
  ids.insert(ids.end(), merged.begin(), merged.end());
  const std::lock_guard lock(shard.mutex);
  if (shard.words.size() >= kCachedWords) shard.words.clear();
  shard.words.emplace(word, std::move(merged));
}

std::vector<std::int32_t> BpeMerger::merge(std::string_view piece) const {
  std::vector<std::int32_t> ids;
  ids.reserve(piece.size());
  for (const char c : piece) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte_ids_[byte] < 0) {
      throw DataError(
          fmt::format("the tokenizer's vocabulary has no token for byte 0x{:02X}: text "
                      "with it cannot be encoded",
                      byte));
    }
    ids.push_back(byte_ids_[byte]);
  }
  if (ids.size() <= kShortPiece) {
    merge_short(ids);
  } else {
    merge_long(ids);
  }
  return ids;
}

void BpeMerger::merge_short(std::vector<std::int32_t>& ids) const {
  std::array<std::int32_t, kShortPiece> rank{}, merged{};
  std::size_t n = ids.size();
  const auto look = [&](std::size_t i) {
    const Pair* pair = i + 1 < n ? find_pair(ids[i], ids[i + 1]) : nullptr;
    rank[i] = pair == nullptr ? kNoRank : pair->rank;
    merged[i] = pair == nullptr ? 0 : pair->merged;
  };
  for (std::size_t i = 0; i < n; ++i) look(i);
  while (n > 1) {
    const auto best = static_cast<std::size_t>(
        std::min_element(rank.begin(), rank.begin() + static_cast<std::ptrdiff_t>(n)) -
        rank.begin());
    if (rank[best] == kNoRank) break;
    ids[best] = merged[best];
    for (std::size_t i = best + 1; i + 1 < n; ++i) {
      ids[i] = ids[i + 1];
      rank[i] = rank[i + 1];
      merged[i] = merged[i + 1];
    }
    --n;
    look(best);
    if (best > 0) look(best - 1);
  }
  ids.resize(n);
}

void BpeMerger::merge_long(std::vector<std::int32_t>& ids) const {
  constexpr std::size_t kEnd = std::numeric_limits<std::size_t>::max();
  struct Node {
    std::size_t previous, next;
    std::int32_t rank, merged;
  };
  struct Candidate {
    std::int32_t rank;
    std::size_t at;
    bool operator>(const Candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  std::vector<Node> nodes(ids.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto look = [&](std::size_t i) {
    const std::size_t next = nodes[i].next;
    const Pair* pair = next == kEnd ? nullptr : find_pair(ids[i], ids[next]);
    nodes[i].rank = pair == nullptr ? kNoRank : pair->rank;
    nodes[i].merged = pair == nullptr ? 0 : pair->merged;
    if (pair != nullptr) heap.push({pair->rank, i});
  };
  for (std::size_t i = 0; i < ids.size(); ++i) {
    nodes[i] = {i == 0 ? kEnd : i - 1, i + 1 < ids.size() ? i + 1 : kEnd, kNoRank, 0};
    look(i);
  }
  while (!heap.empty()) {
    const auto [rank, at] = heap.top();
    heap.pop();
    if (nodes[at].rank != rank) continue;  // merged away, or paired anew since
    const std::size_t gone = nodes[at].next;
    ids[at] = nodes[at].merged;
    nodes[at].next = nodes[gone].next;
    nodes[gone].rank = kNoRank;
    if (nodes[at].next != kEnd) nodes[nodes[at].next].previous = at;
    look(at);
    if (nodes[at].previous != kEnd) look(nodes[at].previous);
  }
  std::size_t out = 0;
  for (std::size_t i = 0; i != kEnd; i = nodes[i].next) ids[out++] = ids[i];
  ids.resize(out);
}

}  // namespace quatrain
