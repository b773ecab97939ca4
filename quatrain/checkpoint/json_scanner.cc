// SPDX-License-Identifier: Apache-2.0
// Scanning by RFC 8259; UTF-8 by the table of well-formed sequences (Unicode, table 3-7).
#include "quatrain/checkpoint/json_scanner.h"

#include <fmt/format.h>

#include <cstring>
#include <iterator>
#include <limits>

#include "quatrain/base/error.h"

namespace quatrain {
namespace {

constexpr int kMaxDepth = 127;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

void append_utf8(std::string& out, std::uint32_t code) {
  auto put = [&out](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

// Length of the well-formed sequence at the front of `text`, 0 when there is none.
std::size_t utf8_length(std::string_view text) {
  auto byte = [text](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  auto in = [&byte](std::size_t i, unsigned low, unsigned high) {
    return byte(i) >= low && byte(i) <= high;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return in(1, 0x80, 0xBF) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const unsigned low = lead == 0xE0 ? 0xA0 : 0x80;
    const unsigned high = lead == 0xED ? 0x9F : 0xBF;
    return in(1, low, high) && in(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const unsigned low = lead == 0xF0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xF4 ? 0x8F : 0xBF;
    return in(1, low, high) && in(2, 0x80, 0xBF) && in(3, 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::size_t find_invalid_utf8(std::string_view text) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080ULL;
  std::size_t i = 0;
  while (i < text.size()) {
    std::uint64_t word = 0;
    if (i + sizeof word <= text.size()) {
      std::memcpy(&word, text.data() + i, sizeof word);
      if ((word & kHighBits) == 0) {
        i += sizeof word;
        continue;
      }
    }
    const std::size_t length = utf8_length(text.substr(i, 4));
    if (length == 0) return i;
    i += length;
  }
  return std::string_view::npos;
}

JsonScanner::JsonScanner(std::string_view text) : text_(text) {
  const std::size_t bad = find_invalid_utf8(text);
  if (bad == std::string_view::npos) return;
  at_ = bad;
  fail("not UTF-8");
}

void JsonScanner::fail(std::string_view rule) const {
  throw DataError(fmt::format("{} (byte {} of the JSON)", rule, at_));
}

void JsonScanner::skip_white_space() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
    ++at_;
  }
}

bool JsonScanner::take(char c) {
  if (at_ >= text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

void JsonScanner::open(char bracket, std::string_view what) {
  white_space();
  if (!take(bracket)) fail(fmt::format("expected {}", what));
  fresh_ = true;
}

bool JsonScanner::next(char closing) {
  white_space();
  const bool first = fresh_;
  fresh_ = false;
  if (take(closing)) return false;
  if (!first && !take(',')) fail(fmt::format("expected ',' or '{}'", closing));
  return true;
}

bool JsonScanner::next_key(std::string& key) {
  if (!next('}')) return false;
  string(key);
  white_space();
  if (!take(':')) fail("expected ':' after a key");
  return true;
}

bool JsonScanner::next_element() { return next(']'); }

std::uint32_t JsonScanner::hex4() {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    std::uint32_t digit = 0;
    if (is_digit(c)) {
      digit = static_cast<std::uint32_t>(c - '0');
    } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
      digit = static_cast<std::uint32_t>((c | 0x20) - 'a') + 10;
    } else {
      fail("\\u needs four hexadecimal digits");
    }
    value = value * 16 + digit;
  }
  return value;
}

void JsonScanner::escape(std::string& out) {
  static constexpr std::string_view kLetters = "\"\\/bfnrt";
  static constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  if (!take('u')) {
    const std::size_t which =
        at_ < text_.size() ? kLetters.find(text_[at_]) : std::string_view::npos;
    if (which == std::string_view::npos) fail("unknown escape");
    out.push_back(kMeanings[which]);
    ++at_;
    return;
  }
  std::uint32_t code = hex4();
  if (code >= 0xDC00 && code <= 0xDFFF) fail("lone surrogate");
  if (code >= 0xD800 && code <= 0xDBFF) {
    if (!take('\\') || !take('u')) fail("lone surrogate");
    const std::uint32_t low = hex4();
    if (low < 0xDC00 || low > 0xDFFF) fail("lone surrogate");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  append_utf8(out, code);
}

void JsonScanner::string(std::string& out) {
  white_space();
  if (!take('"')) fail("expected a string");
  out.clear();
  const std::size_t size = text_.size();
  while (true) {
    std::size_t stop = at_;
    while (stop < size && text_[stop] != '"' && text_[stop] != '\\' &&
           static_cast<unsigned char>(text_[stop]) >= 0x20) {
      ++stop;
    }
    out.append(text_.substr(at_, stop - at_));
    at_ = stop;
    if (take('"')) return;
    if (at_ == size) fail("string without end");
    if (!take('\\')) fail("raw control character in a string");
    escape(out);
  }
}

std::int64_t JsonScanner::integer() {
  white_space();
  if (at_ >= text_.size() || !is_digit(text_[at_])) fail("expected a non-negative integer");
  const bool zero = text_[at_] == '0';
  std::int64_t value = 0;
  std::size_t digits = 0;
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  for (; at_ < text_.size() && is_digit(text_[at_]); ++at_, ++digits) {
    const std::int64_t digit = text_[at_] - '0';
    if (value > (kMax - digit) / 10) fail("integer above 2^63 - 1");
    value = value * 10 + digit;
  }
  if (zero && digits > 1) fail("leading zero");
  const char c = at_ < text_.size() ? text_[at_] : ' ';
  if (c == '.' || c == 'e' || c == 'E') fail("expected an integer, not a fraction or exponent");
  return value;
}

void JsonScanner::literal(std::string_view word) {
  if (text_.substr(at_, word.size()) != word) fail("expected a value");
  at_ += word.size();
}

void JsonScanner::number() {
  auto digits = [this] {
    if (at_ >= text_.size() || !is_digit(text_[at_])) fail("expected a digit");
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
  };
  take('-');
  if (!take('0')) digits();
  if (take('.')) digits();
  if (take('e') || take('E')) {
    if (!take('+')) take('-');
    digits();
  }
}

void JsonScanner::skip_value() {
  white_space();
  if (at_ >= text_.size()) fail("expected a value");
  std::string text;
  switch (text_[at_]) {
    case '"':
      return string(text);
    case 't':
      return literal("true");
    case 'f':
      return literal("false");
    case 'n':
      return literal("null");
    case '{':
    case '[':
      break;
    default:
      return number();
  }
  if (++depth_ > kMaxDepth) fail("nested more than 127 levels deep");
  if (text_[at_] == '{') {
    open_object();
    while (next_key(text)) skip_value();
  } else {
    open_array();
    while (next_element()) skip_value();
  }
  --depth_;
}

std::string_view JsonScanner::raw_value() {
  white_space();
  const std::size_t begin = at_;
  skip_value();
  return text_.substr(begin, at_ - begin);
}

void JsonScanner::end() {
  white_space();
  if (at_ != text_.size()) fail("text after the end of the JSON value");
}

void append_quoted(std::string& out, std::string_view text) {
  out.push_back('"');
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
}

}  // namespace quatrain
