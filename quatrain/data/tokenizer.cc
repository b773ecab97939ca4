// SPDX-License-Identifier: Apache-2.0
// The byte tokenizer, and which tokenizer a name or path stands for.
#include "quatrain/data/tokenizer.h"

#include <fmt/format.h>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/base/rng.h"
#include "quatrain/data/bpe_spec.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;

// Id = byte; 256 ends a document.
class ByteTokenizer : public Tokenizer {
 public:
  std::string_view kind() const override { return "bytes"; }
  std::int64_t vocab_size() const override { return kEod + 1; }
  std::optional<std::int64_t> eod_id() const override { return kEod; }
  std::uint64_t fingerprint() const override { return stable_hash("bytes"); }
  bool cuts_at_lines() const override { return true; }
  std::vector<std::int64_t> encode(std::string_view text) const override {
    std::vector<std::int64_t> ids(text.size());
    for (std::size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
    return ids;
  }
  std::string decode(std::span<const std::int64_t> ids) const override {
    std::string text;
    for (const std::int64_t id : ids) {
      if (id >= 0 && id < kEod) {
        text += static_cast<char>(id);
      } else {
        text += id == kEod ? "<|endoftext|>" : "\xEF\xBF\xBD";
      }
    }
    return text;
  }
  void save(const fs::path& folder) const override {
    write_file_atomically(folder / "tokenizer.json", byte_tokenizer_json());
  }

 private:
  static constexpr std::int64_t kEod = 256;
};

std::unique_ptr<Tokenizer> open_folder(const fs::path& folder) {
  if (const fs::path file = folder / "tokenizer.json"; fs::exists(file)) {
    return make_bpe_tokenizer(read_tokenizer_json(file));
  }
  if (const fs::path model = folder / "tokenizer.model"; fs::exists(model)) {
    return open_sentencepiece(model);
  }
  if (fs::exists(folder / "vocab.json") && fs::exists(folder / "merges.txt")) {
    return make_bpe_tokenizer(read_vocab_and_merges(folder));
  }
  throw ConfigError(
      fmt::format("{}: no tokenizer in this folder: it needs tokenizer.json, "
                  "tokenizer.model, or vocab.json with merges.txt",
                  folder.string()));
}

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name_or_path) {
  if (name_or_path == "bytes") return make_byte_tokenizer();
  const fs::path path(name_or_path);
  if (fs::is_directory(path)) return open_folder(path);
  if (!fs::exists(path)) {
    throw ConfigError(
        fmt::format("tokenizer = \"{}\": neither \"bytes\" nor a file or folder that "
                    "exists",
                    name_or_path));
  }
  if (path.extension() == ".model") return open_sentencepiece(path);
  if (path.extension() == ".json" && path.filename() != "vocab.json") {
    return make_bpe_tokenizer(read_tokenizer_json(path));
  }
  if (path.filename() == "vocab.json" || path.filename() == "merges.txt") {
    return open_folder(path.parent_path());
  }
  throw ConfigError(
      fmt::format("tokenizer = \"{}\": name a *.model (sentencepiece), a "
                  "tokenizer.json, or a folder that holds one",
                  name_or_path));
}

void check_vocab(const Tokenizer& tokenizer, std::int64_t model_vocab) {
  if (tokenizer.vocab_size() <= model_vocab) return;
  throw DataError(
      fmt::format("the tokenizer makes ids up to {}, but the model has {} rows in its "
                  "embedding: set model.vocab_size to at least {}",
                  tokenizer.vocab_size() - 1, model_vocab, tokenizer.vocab_size()));
}

}  // namespace quatrain
