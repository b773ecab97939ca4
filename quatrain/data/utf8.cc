// SPDX-License-Identifier: Apache-2.0
// UTF-8, RFC 3629, section 4: the grammar of well-formed sequences.
#include "quatrain/data/utf8.h"

#include <cstring>

namespace quatrain {
namespace {

std::uint8_t byte(std::string_view text, std::size_t i) {
  return i < text.size() ? static_cast<std::uint8_t>(text[i]) : std::uint8_t{0};
}

bool tail(std::uint8_t b) { return (b & 0xC0U) == 0x80U; }

}  // namespace

std::size_t utf8_char_bytes(std::string_view text) {
  if (text.empty()) return 0;
  const std::uint8_t a = byte(text, 0), b = byte(text, 1), c = byte(text, 2), d = byte(text, 3);
  if (a < 0x80) return 1;
  if (a >= 0xC2 && a <= 0xDF) return tail(b) ? 2 : 0;
  if (a >= 0xE0 && a <= 0xEF) {
    const bool second = a == 0xE0 ? b >= 0xA0 : a != 0xED || b <= 0x9F;
    return tail(b) && second && tail(c) ? 3 : 0;
  }
  if (a >= 0xF0 && a <= 0xF4) {
    const bool second = a == 0xF0 ? b >= 0x90 : a != 0xF4 || b <= 0x8F;
    return tail(b) && second && tail(c) && tail(d) ? 4 : 0;
  }
  return 0;
}

std::size_t utf8_run_bytes(std::string_view text, bool valid) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (valid && at + 8 <= text.size()) {
      std::uint64_t word = 0;
      std::memcpy(&word, text.data() + at, 8);
      if ((word & 0x8080808080808080U) == 0) {
        at += 8;
        continue;
      }
    }
    const std::size_t bytes = utf8_char_bytes(text.substr(at, 4));
    if ((bytes != 0) != valid) break;
    at += valid ? bytes : 1;
  }
  return at;
}

char32_t utf8_next(std::string_view text, std::size_t& at) {
  const std::uint32_t a = byte(text, at);
  const auto more = [&](std::size_t i) { return byte(text, at + i) & 0x3FU; };
  char32_t character = a;
  std::size_t bytes = 1;
  if (a >= 0xF0) {
    character = ((a & 0x07U) << 18U) | (more(1) << 12U) | (more(2) << 6U) | more(3);
    bytes = 4;
  } else if (a >= 0xE0) {
    character = ((a & 0x0FU) << 12U) | (more(1) << 6U) | more(2);
    bytes = 3;
  } else if (a >= 0xC0) {
    character = ((a & 0x1FU) << 6U) | more(1);
    bytes = 2;
  }
  at += bytes;
  return character;
}

void utf8_append(std::string& to, char32_t character) {
  const auto put = [&](std::uint32_t b) { to.push_back(static_cast<char>(b)); };
  const std::uint32_t c = character;
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0U | (c >> 6U));
    put(0x80U | (c & 0x3FU));
  } else if (c < 0x10000) {
    put(0xE0U | (c >> 12U));
    put(0x80U | ((c >> 6U) & 0x3FU));
    put(0x80U | (c & 0x3FU));
  } else {
    put(0xF0U | (c >> 18U));
    put(0x80U | ((c >> 12U) & 0x3FU));
    put(0x80U | ((c >> 6U) & 0x3FU));
    put(0x80U | (c & 0x3FU));
  }
}

}  // namespace quatrain
