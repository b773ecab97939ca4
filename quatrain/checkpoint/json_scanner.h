// SPDX-License-Identifier: Apache-2.0
// A strict JSON scanner for files that strangers write: RFC 8259 and nothing beside it. Callers
// walk the text and refuse what their format refuses; no tree is built, so memory stays the
// caller's.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace quatrain {

// Every function throws DataError naming the rule and the byte where it broke.
class JsonScanner {
 public:
  // The text must outlive the scanner. Throws when it is not UTF-8 (overlong forms, surrogates).
  explicit JsonScanner(std::string_view text);

  // Enters the object or array that comes next.
  void open_object() { open('{', "an object"); }
  void open_array() { open('[', "an array"); }
  // The decoded key of the next member, whose value must be read next; false when the object ends.
  bool next_key(std::string& key);
  // Whether an element follows, which must be read next; false when the array ends.
  bool next_element();

  // A string, decoded to UTF-8; lone surrogates and raw control characters are refused.
  void string(std::string& out);
  // A non-negative integer of up to 63 bits, digits only: no sign, fraction, exponent, leading
  // zero.
  std::int64_t integer();
  // Any value, at most 127 levels deep.
  void skip_value();
  // The same, as it is written.
  std::string_view raw_value();
  // Only white space may follow.
  void end();
  [[noreturn]] void fail(std::string_view rule) const;

 private:
  void open(char bracket, std::string_view what);
  bool next(char closing);
  // Most places have none.
  void white_space() {
    if (at_ < text_.size() && static_cast<unsigned char>(text_[at_]) <= ' ') skip_white_space();
  }
  void skip_white_space();
  bool take(char c);
  void literal(std::string_view word);
  void number();
  std::uint32_t hex4();
  void escape(std::string& out);

  std::string_view text_;
  std::size_t at_ = 0;
  bool fresh_ = false;  // just after an opening bracket
  int depth_ = 0;       // of skip_value
};

// Appends the text as a JSON string. It must be UTF-8.
void append_quoted(std::string& out, std::string_view text);

// Position of the first byte that is not part of well-formed UTF-8, or npos.
std::size_t find_invalid_utf8(std::string_view text);

}  // namespace quatrain
