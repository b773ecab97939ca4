// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding over bytes (Sennrich et al., arXiv:1508.07909; over bytes as in GPT-2): of all
// neighbouring pairs the one learned first is merged, leftmost first, until none is left.
#pragma once
#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace quatrain {

class BpeMerger {
 public:
  struct Merge {
    std::int32_t left, right, merged;  // ids; the rank is the place in the list
  };
  // tokens[id]: the bytes of a token that pieces of text may become (empty: none). With
  // `ignore_merges` a piece that is a token is that token, whether or not merges lead to it.
  BpeMerger(std::vector<std::string> tokens, const std::vector<Merge>& merges, bool ignore_merges);

  // Appends the ids of one piece of text. Thread-safe. Throws DataError for a byte without a token.
  void encode(std::string_view piece, std::vector<std::int64_t>& ids) const;

 private:
  struct Pair {
    std::uint64_t key = kNoKey;
    std::int32_t rank = 0, merged = 0;
  };
  struct Word {
    std::uint64_t hash = 0;
    std::int32_t id = -1;
  };
  struct alignas(64) CacheShard {
    std::mutex mutex;
    std::unordered_map<std::string, std::vector<std::int32_t>> words;
  };
  static constexpr std::uint64_t kNoKey = ~std::uint64_t{0};

  void insert_pair(const Merge& merge, std::int32_t rank);
  void insert_word(std::string_view bytes, std::int32_t id);
  const Pair* find_pair(std::int32_t left, std::int32_t right) const;
  std::int32_t find_word(std::string_view bytes, std::uint64_t hash) const;  // -1: none
  std::vector<std::int32_t> merge(std::string_view piece) const;
  void merge_short(std::vector<std::int32_t>& ids) const;
  void merge_long(std::vector<std::int32_t>& ids) const;

  std::vector<std::string> tokens_;
  std::array<std::int32_t, 256> byte_ids_;
  std::vector<Pair> pairs_;  // open addressing, a power of two, at most half full
  std::vector<Word> words_;  // pieces that become one token, likewise
  mutable std::array<CacheShard, 16> cache_;
};

}  // namespace quatrain
