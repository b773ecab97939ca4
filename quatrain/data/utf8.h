// SPDX-License-Identifier: Apache-2.0
// UTF-8 by the rules of RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quatrain {

inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Bytes of the valid character at the front of `text` (1 to 4); 0 when there is none.
std::size_t utf8_char_bytes(std::string_view text);

// Bytes of the longest valid (or, with `valid` false, invalid) prefix of `text`.
std::size_t utf8_run_bytes(std::string_view text, bool valid);

// The character at `at`, which must be valid; moves `at` behind it.
char32_t utf8_next(std::string_view text, std::size_t& at);

void utf8_append(std::string& to, char32_t character);

// `text` without a byte-order mark at its front.
inline std::string_view without_bom(std::string_view text) {
  return text.starts_with(kByteOrderMark) ? text.substr(kByteOrderMark.size()) : text;
}

}  // namespace quatrain
