// SPDX-License-Identifier: Apache-2.0
// Text into token files: text files (one document each), JSONL (one a line), folders of both, over
// several threads, with the same output whatever their number.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "quatrain/data/token_file.h"
#include "quatrain/data/tokenizer.h"

namespace quatrain {

struct TokenizeCounts {
  std::int64_t bytes = 0;  // of input read so far
  std::int64_t documents = 0;
  std::int64_t tokens = 0;           // end-of-document tokens included
  std::int64_t skipped_empty = 0;    // no text, or white space alone
  std::int64_t skipped_missing = 0;  // JSONL without the key
  std::int64_t skipped_null = 0;     // JSONL with null under the key
  std::int64_t skipped() const { return skipped_empty + skipped_missing + skipped_null; }
};

struct TokenizeOptions {
  std::string text_key = "text";  // of JSONL
  bool append_eod = true;
  int threads = 0;  // 0: all cores
  // Called on the thread that called tokenize(); may be empty.
  std::function<void(const TokenizeCounts&, std::int64_t total_bytes)> progress = {};
};

// Files to tokenize: files as named, folders by what is in them (recursively, sorted: .txt .text
// .md and .jsonl .ndjson .json). Throws ConfigError for what does not exist or holds no text.
std::vector<std::filesystem::path> text_files(const std::vector<std::filesystem::path>& inputs);

// Writes <prefix>.bin and .idx. A byte-order mark at the start of a file or text is dropped; CRLF
// in text files becomes LF. Throws ConfigError (no end-of-document token), DataError (file:line),
// StorageError; then nothing is written.
TokenizeCounts tokenize(const std::vector<std::filesystem::path>& inputs,
                        const Tokenizer& tokenizer, const std::filesystem::path& prefix,
                        const TokenizeOptions& options);

// The tokens of text files, from the cache folder when the same text went through the same
// tokenizer before.
std::unique_ptr<TokenFile> open_text(const std::vector<std::filesystem::path>& inputs,
                                     const Tokenizer& tokenizer, const std::filesystem::path& cache,
                                     const TokenizeOptions& options = {});

}  // namespace quatrain
