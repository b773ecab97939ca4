// SPDX-License-Identifier: Apache-2.0
// Canonical decomposition, ordering and composition (Unicode Standard, section 3.11; Hangul by the
// arithmetic of section 3.12).
#include "quatrain/data/nfc.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "quatrain/data/utf8.h"

namespace quatrain {
namespace {

constexpr char32_t kSBase = 0xAC00, kLBase = 0x1100, kVBase = 0x1161, kTBase = 0x11A7;
constexpr char32_t kLCount = 19, kVCount = 21, kTCount = 28, kSCount = kLCount * kVCount * kTCount;

bool is_plain(char32_t c) {
  const auto within = [c](char32_t first, char32_t last) { return c >= first && c <= last; };
  return c < 0x300 || within(0x400, 0x482) || within(0x2002, 0x2027) || within(0x3041, 0x3096) ||
         within(0x30A0, 0x30FF) || within(0x3400, 0x9FFF) || within(kSBase, kSBase + kSCount - 1) ||
         within(0x1F300, 0x1FAFF);
}

std::uint32_t combining_class(char32_t c) {
  const auto after = std::upper_bound(nfc::kClasses.begin(), nfc::kClasses.end(), c,
                                      [](char32_t v, const nfc::Class& k) { return v < k.first; });
  if (after == nfc::kClasses.begin()) return 0;
  const nfc::Class& range = *(after - 1);
  return c <= range.last ? range.value : 0;
}

template <class Row, class Key>
const Row* find(std::span<const Row> rows, char32_t c, Key key) {
  const auto at = std::lower_bound(rows.begin(), rows.end(), c,
                                   [&](const Row& row, char32_t v) { return row.*key < v; });
  return at != rows.end() && (*at).*key == c ? &*at : nullptr;
}

void decompose(char32_t c, std::vector<char32_t>& out) {
  if (c >= kSBase && c < kSBase + kSCount) {
    const char32_t s = c - kSBase;
    out.push_back(kLBase + s / (kVCount * kTCount));
    out.push_back(kVBase + s % (kVCount * kTCount) / kTCount);
    if (s % kTCount != 0) out.push_back(kTBase + s % kTCount);
  } else if (const auto* pair = find(nfc::kPairs, c, &nfc::Pair::whole)) {
    decompose(pair->first, out);
    out.push_back(pair->second);
  } else if (const auto* single = find(nfc::kSingles, c, &nfc::Single::from)) {
    decompose(single->to, out);
  } else {
    out.push_back(c);
  }
}

// The one character that two make; 0: none.
char32_t compose(char32_t a, char32_t b) {
  if (a >= kLBase && a < kLBase + kLCount && b >= kVBase && b < kVBase + kVCount) {
    return kSBase + ((a - kLBase) * kVCount + (b - kVBase)) * kTCount;
  }
  const bool lv = a >= kSBase && a < kSBase + kSCount && (a - kSBase) % kTCount == 0;
  if (lv && b > kTBase && b < kTBase + kTCount) return a + (b - kTBase);
  static const auto kComposed = [] {
    std::unordered_map<std::uint64_t, std::uint32_t> map;
    for (const nfc::Pair& pair : nfc::kPairs) {
      if (pair.composes != 0) {
        map[(std::uint64_t{pair.first} << 32U) | pair.second] = pair.whole;
      }
    }
    return map;
  }();
  const auto found = kComposed.find((std::uint64_t{a} << 32U) | b);
  return found == kComposed.end() ? 0 : found->second;
}

// Sorts each run of combining characters by class, keeping the order of equal ones.
void reorder(std::vector<char32_t>& text) {
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && combining_class(text[end]) != 0) ++end;
    std::stable_sort(text.begin() + static_cast<std::ptrdiff_t>(i),
                     text.begin() + static_cast<std::ptrdiff_t>(end), [](char32_t a, char32_t b) {
                       return combining_class(a) < combining_class(b);
                     });
    i = end + 1;
  }
}

std::vector<char32_t> recompose(const std::vector<char32_t>& text) {
  constexpr std::size_t kNone = ~std::size_t{0};
  std::vector<char32_t> out;
  std::size_t starter = kNone;
  std::uint32_t last = 0;  // class of the last character kept behind the starter
  for (const char32_t c : text) {
    const std::uint32_t k = combining_class(c);
    const bool adjacent = starter != kNone && out.size() == starter + 1;
    if (starter != kNone && (adjacent || (last != 0 && last < k))) {
      if (const char32_t whole = compose(out[starter], c); whole != 0) {
        out[starter] = whole;
        continue;
      }
    }
    if (k == 0) starter = out.size();
    last = k;
    out.push_back(c);
  }
  return out;
}

}  // namespace

bool is_nfc_plainly(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    if (!is_plain(utf8_next(text, at))) return false;
  }
  return true;
}

std::string to_nfc(std::string_view text) {
  std::vector<char32_t> characters;
  for (std::size_t at = 0; at < text.size();) decompose(utf8_next(text, at), characters);
  reorder(characters);
  std::string out;
  for (const char32_t c : recompose(characters)) utf8_append(out, c);
  return out;
}

}  // namespace quatrain
