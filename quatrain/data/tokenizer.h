// SPDX-License-Identifier: Apache-2.0
// Text to ids and back: bytes, sentencepiece, and byte-level BPE (GPT-2, Llama-3 and Qwen
// patterns). encode then decode gives back the same bytes for bytes and BPE; for sentencepiece when
// trained by us (identity normalisation, byte fallback).
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quatrain {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string_view kind() const = 0;    // "bytes", "sentencepiece", "bpe"
  virtual std::int64_t vocab_size() const = 0;  // 1 + the largest id
  virtual std::vector<std::int64_t> encode(std::string_view text) const = 0;  // thread-safe
  // Bytes; U+FFFD for an id without a token (padded vocabularies).
  virtual std::string decode(std::span<const std::int64_t> ids) const = 0;
  virtual std::optional<std::int64_t> eod_id() const = 0;  // end of document, when it has one
  // Copies the files that recreate it into `folder` (Hugging Face names).
  virtual void save(const std::filesystem::path& folder) const = 0;
  // The same for tokenizers that give the same ids: what caches of ids are keyed by.
  virtual std::uint64_t fingerprint() const = 0;
  // Whether text may be cut behind a newline that stands between two ASCII letters or digits:
  // encode(a) + encode(b) is then encode(a + b).
  virtual bool cuts_at_lines() const { return false; }
};

// "bytes", or a path: *.model (sentencepiece), tokenizer.json, or a folder that holds one of these
// or vocab.json + merges.txt. Throws DataError (what is wrong in which file), ConfigError (no
// such).
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name_or_path);

std::unique_ptr<Tokenizer> make_byte_tokenizer();
std::unique_ptr<Tokenizer> open_sentencepiece(const std::filesystem::path& model);
struct BpeSpec;
std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeSpec spec);

// Throws DataError when the tokenizer makes ids that a model of `model_vocab` ids has no rows for.
void check_vocab(const Tokenizer& tokenizer, std::int64_t model_vocab);

// Trains sentencepiece BPE on text files and writes `model_path`: byte fallback, identity
// normalisation, end-of-document piece </s>.
void train_sentencepiece(const std::vector<std::filesystem::path>& texts, std::int64_t vocab,
                         const std::filesystem::path& model_path, int threads);

}  // namespace quatrain
