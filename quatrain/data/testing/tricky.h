// SPDX-License-Identifier: Apache-2.0
// Text that tokenizers lose: white space of every kind, controls, marks, emoji, and random strings.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "quatrain/base/rng.h"
#include "quatrain/data/utf8.h"

namespace quatrain::testing {

inline std::vector<std::string> tricky_texts() {
  using namespace std::string_literals;
  std::vector<std::string> texts = {"",
                                    " ",
                                    "  ",
                                    "\n",
                                    "\n\n\n",
                                    "\t",
                                    "\r\n",
                                    " a",
                                    "a ",
                                    "  a  b  ",
                                    "\n a\n\n b \n",
                                    "a\tb\t\tc",
                                    "\0"s,
                                    "a\0b"s,
                                    "\x01\x02\x7F",
                                    "<|endoftext|>",
                                    "</s>",
                                    "<s><unk><0x0A>",
                                    "\xE2\x96\x81",
                                    "a\xE2\x96\x81 \xE2\x96\x81",
                                    "\xE2\x96\x85",
                                    "\xE2\x81\x87",
                                    " \xE2\x81\x87 ",
                                    "\xEF\xBB\xBF"
                                    "bom",
                                    "e\xCC\x81",
                                    "\xC3\xA9",
                                    "\xEF\xBC\xA1",
                                    "\xE2\x84\xAB",
                                    "\xEF\xAC\x81",
                                    "\xE4\xBD\xA0\xE5\xA5\xBD\xE3\x80\x82",
                                    "\xF0\x9F\x98\x80\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9",
                                    "\xC2\xA0\xE3\x80\x80\xE2\x80\xA8",
                                    "\xF4\x8F\xBF\xBF",
                                    "\xEF\xBF\xBD",
                                    "It's  1234,5 -- ok?"};
  const RandomStream random(7, "tricky");
  std::uint64_t draw = 0;
  for (int i = 0; i < 400; ++i) {
    std::string text;
    const std::uint64_t length = random.below(draw++, 40);
    for (std::uint64_t k = 0; k < length; ++k) {
      const std::uint64_t kind = random.below(draw++, 6);
      const std::uint64_t limit = kind < 2   ? 0x80
                                  : kind < 4 ? 0x3000
                                  : kind < 5 ? 0xD800
                                             : 0x110000;
      auto c = static_cast<char32_t>(random.below(draw++, limit));
      if (c >= 0xD800 && c < 0xE000) c = 0x20;
      utf8_append(text, c);
    }
    texts.push_back(text);
  }
  return texts;
}

// Bytes that are no UTF-8, among text.
inline std::vector<std::string> broken_texts() {
  std::vector<std::string> texts = {"\xFF",
                                    "a\xFF"
                                    "b",
                                    "\x80\x80",
                                    "\xC3",
                                    "\xE2\x96",
                                    "\xED\xA0\x80",
                                    "\xC0\xAF",
                                    "\xF5\x80\x80\x80",
                                    "\xF0\x9F\x98",
                                    "ok \xE2\x28 ok",
                                    "\xFE\xFF\n x"};
  const RandomStream random(8, "broken");
  std::uint64_t draw = 0;
  for (int i = 0; i < 200; ++i) {
    std::string text;
    for (std::uint64_t k = random.below(draw++, 30); k > 0; --k) {
      text += static_cast<char>(random.below(draw++, 256));
    }
    texts.push_back(text);
  }
  return texts;
}

}  // namespace quatrain::testing
