// SPDX-License-Identifier: Apache-2.0
// Token files of Megatron (.idx + .bin), llm.c (.bin with a header) and nanoGPT (raw u16), memory
// mapped and bounds-checked, behind one interface. Offsets are 64-bit throughout.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quatrain {

enum class TokenFormat : std::uint8_t { kAuto, kMegatron, kLlmc, kNanoGpt };

// Tokens of one file as one row of ids, with the boundaries of documents where the format has them.
class TokenFile {
 public:
  virtual ~TokenFile() = default;
  virtual std::string_view format() const = 0;  // "megatron", "llmc", "nanogpt"
  virtual std::string_view dtype() const = 0;   // "u8", "u16", "i32", "u32", ...
  virtual std::int64_t num_tokens() const = 0;
  // Ids [begin, begin + out.size()) of the whole file. Throws DataError outside the file.
  virtual void read(std::int64_t begin, std::span<std::int64_t> out) const = 0;
  // First token of each document and num_tokens() at the end; empty when the format knows none.
  virtual std::span<const std::int64_t> document_begins() const = 0;
  virtual const std::filesystem::path& path() const = 0;
};

// `path`: a .bin, a Megatron .idx or prefix, or a folder, whose token files are laid end to end in
// the order of their names. kAuto decides by magic and extension. Throws DataError (named file and
// rule), StorageError, ConfigError (no such file).
std::unique_ptr<TokenFile> open_token_file(const std::filesystem::path& path, TokenFormat format);

// Several files as one row of ids. documents: of all, where every file knows its own.
std::unique_ptr<TokenFile> concatenate(std::vector<std::unique_ptr<TokenFile>> files);

// Throws DataError naming file, position and id when an id is outside [0, vocab).
void check_ids(const TokenFile& file, std::int64_t vocab);

struct TokenFileFacts {
  std::string format, dtype;
  std::int64_t tokens = 0, documents = 0, max_id = 0, eod_count = 0;
};
// documents: of the format's boundaries, else the number of eod ids. eod_id < 0: not counted.
TokenFileFacts inspect(const TokenFile& file, std::int64_t eod_id);
// What a user should look at: no end-of-document id, no tokens. Empty: nothing.
std::vector<std::string> inspect_warnings(const TokenFileFacts& facts, std::int64_t eod_id);

// Appends documents to <prefix>.bin and, on finish(), writes <prefix>.idx: both under temporary
// names until then. u16 when vocab < 65,500, else i32.
class MegatronWriter {
 public:
  MegatronWriter(const std::filesystem::path& prefix, std::int64_t vocab);
  ~MegatronWriter();                                     // without finish(): removes what it wrote
  void add_document(std::span<const std::int64_t> ids);  // DataError for an id that does not fit
  void finish();
  std::int64_t num_tokens() const;
  std::int64_t num_documents() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quatrain
