// SPDX-License-Identifier: Apache-2.0
// Normalization Form C (Unicode Standard Annex 15): what Qwen's tokenizers do to text first.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace quatrain {

// True only for text that is in form C and made of characters that need no look at the tables.
bool is_nfc_plainly(std::string_view text);
// `text` (valid UTF-8) in form C.
std::string to_nfc(std::string_view text);

namespace nfc {

struct Pair {
  std::uint32_t whole, first, second;
  std::uint32_t composes;  // 0: decomposes only
};
struct Single {
  std::uint32_t from, to;
};
struct Class {
  std::uint32_t first, last, value;
};
extern const std::span<const Pair> kPairs;
extern const std::span<const Single> kSingles;
extern const std::span<const Class> kClasses;

}  // namespace nfc
}  // namespace quatrain
