// SPDX-License-Identifier: Apache-2.0
// What a byte-level BPE tokenizer is, read from Hugging Face's tokenizer.json or from GPT-2's
// vocab.json and merges.txt. Whatever a file asks for and we do not do is refused by name.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace quatrain {

struct BpeSpec {
  struct Added {
    std::string content;
    std::int64_t id = 0;
    bool special = false;
    bool normalized = false;  // looked for after normalisation
  };
  struct Split {
    std::string pattern;  // Oniguruma's syntax
    bool keep_gaps = true;
  };
  std::vector<std::pair<std::string, std::int64_t>> vocab;  // as in the file: byte characters
  std::vector<std::pair<std::string, std::string>> merges;  // in order of rank
  std::vector<Added> added;
  std::vector<Split> splits;
  bool ignore_merges = false;
  bool nfc = false;  // canonical composition first (Unicode Standard Annex 15)
  std::string eod;   // end-of-document token; empty: none
  std::vector<std::filesystem::path> files;  // what recreates it
};

// `file`: a tokenizer.json; a tokenizer_config.json beside it may name the end-of-document token.
BpeSpec read_tokenizer_json(const std::filesystem::path& file);
// `folder`: holds vocab.json and merges.txt.
BpeSpec read_vocab_and_merges(const std::filesystem::path& folder);

// The tokenizer.json of one token a byte and <|endoftext|> = 256.
std::string byte_tokenizer_json();

// Byte <-> printable character, as GPT-2 writes bytes in JSON.
char32_t character_of_byte(unsigned char byte);
// The bytes that a token's characters stand for; the text itself where one stands for none.
std::string bytes_of_token(const std::string& token, bool* all_mapped = nullptr);

}  // namespace quatrain
