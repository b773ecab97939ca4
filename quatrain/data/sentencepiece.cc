// SPDX-License-Identifier: Apache-2.0
// Sentencepiece models. What its own encoder would change (U+2581, which it uses for the space,
// and bytes that are no UTF-8) goes through the model's byte pieces, so that a model with byte
// fallback and without normalisation gives back every input.
#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <array>
#include <fstream>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/base/rng.h"
#include "quatrain/data/tokenizer.h"
#include "quatrain/data/utf8.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSpacePiece = "\xE2\x96\x81";  // U+2581

// Whether the protobuf message has all its parts: pieces (field 1), then the specifications of
// trainer (2) and normaliser (3). A model cut off between two fields still parses.
bool is_complete(std::string_view message) {
  const auto varint = [&message] {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 63 && !message.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(message[0]);
      message.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
    return ~std::uint64_t{0};
  };
  std::array<bool, 8> seen{};
  while (!message.empty()) {
    const std::uint64_t tag = varint(), length = varint();
    if ((tag & 7U) != 2 || length > message.size()) return false;
    seen[(tag >> 3U) & 7U] = true;
    message.remove_prefix(length);
  }
  return seen[1] && seen[2] && seen[3];
}

class SentencepieceTokenizer : public Tokenizer {
 public:
  explicit SentencepieceTokenizer(const fs::path& model) : model_(model) {
    const std::string content = read_file(model);
    if (!is_complete(content)) {
      throw DataError(
          fmt::format("{}: not a sentencepiece model: pieces, trainer or normaliser are "
                      "missing (truncated?)",
                      model.string()));
    }
    const auto status = processor_.LoadFromSerializedProto(content);
    if (!status.ok() || processor_.GetPieceSize() == 0) {
      throw DataError(fmt::format("{}: not a sentencepiece model: {}", model.string(),
                                  status.ok() ? "it has no pieces" : status.ToString()));
    }
    fingerprint_ = stable_hash(content);
    find_bytes();
    exact_ = has_bytes_ && gives_back("a  b ") && gives_back(" \xC3\x85 a\xCC\x8A \xEF\xBC\xA1");
    std::vector<int> ids;
    prefixed_ = processor_.Encode("a", &ids).ok() && !ids.empty() &&
                processor_.IdToPiece(ids[0]).starts_with(kSpacePiece);
  }

  std::string_view kind() const override { return "sentencepiece"; }
  std::int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  std::uint64_t fingerprint() const override { return fingerprint_; }
  bool cuts_at_lines() const override { return exact_; }
  std::optional<std::int64_t> eod_id() const override {
    if (processor_.eos_id() < 0) return std::nullopt;
    return processor_.eos_id();
  }

  std::vector<std::int64_t> encode(std::string_view text) const override {
    std::vector<std::int64_t> ids;
    if (!exact_) {
      encode_part(text, ids);
      return ids;
    }
    while (!text.empty()) {
      const std::size_t part = plain_bytes(text);
      encode_part(text.substr(0, part), ids);
      text.remove_prefix(part);
      for (std::size_t left = special_bytes(text); left > 0; --left) {
        ids.push_back(byte_ids_[static_cast<unsigned char>(text[0])]);
        text.remove_prefix(1);
      }
    }
    return ids;
  }

  std::string decode(std::span<const std::int64_t> ids) const override {
    std::string text;
    for (const std::int64_t id : ids) append_text(id, text);
    if (prefixed_ && text.starts_with(' ')) text.erase(0, 1);
    return text;
  }

  void save(const fs::path& folder) const override {
    write_file_atomically(folder / "tokenizer.model", read_file(model_));
  }

 private:
  void find_bytes() {
    has_bytes_ = true;
    for (std::size_t b = 0; b < 256; ++b) {
      const int id = processor_.PieceToId(fmt::format("<0x{:02X}>", b));
      byte_ids_[b] = id;
      has_bytes_ = has_bytes_ && processor_.IsByte(id);
    }
  }
  bool gives_back(std::string_view text) const {
    std::vector<std::int64_t> ids;
    encode_part(text, ids);
    std::string back;
    for (const std::int64_t id : ids) append_text(id, back);
    return back == text;
  }

  // Bytes that sentencepiece encodes as they are: up to the next newline, U+2581 or bad byte. It
  // never makes a piece across a newline, and short texts keep its heap in the cache.
  static std::size_t plain_bytes(std::string_view text) {
    std::size_t at = 0;
    while (at < text.size() && special_bytes(text.substr(at, 8)) == 0) {
      at += utf8_char_bytes(text.substr(at, 4));
    }
    return at;
  }
  // Bytes at the front that go through byte pieces; 0: none.
  static std::size_t special_bytes(std::string_view text) {
    if (text.empty()) return 0;
    const auto front = static_cast<unsigned char>(text[0]);
    if (front == '\n' || front == 0) return 1;
    if (front < 0x80) return 0;
    if (text.starts_with(kSpacePiece)) return kSpacePiece.size();
    return utf8_char_bytes(text.substr(0, 4)) == 0 ? 1 : 0;
  }

  void encode_part(std::string_view text, std::vector<std::int64_t>& ids) const {
    if (text.empty()) return;
    std::vector<int> part;
    const auto status = processor_.Encode({text.data(), text.size()}, &part);
    if (!status.ok()) {
      throw DataError(fmt::format("{}: cannot encode: {}", model_.string(), status.ToString()));
    }
    ids.insert(ids.end(), part.begin(), part.end());
  }

  void append_text(std::int64_t id, std::string& text) const {
    if (id < 0 || id >= vocab_size()) {
      text += "\xEF\xBF\xBD";
      return;
    }
    const int piece_id = static_cast<int>(id);
    const std::string& piece = processor_.IdToPiece(piece_id);
    if (processor_.IsByte(piece_id)) {
      text += static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16));
      return;
    }
    for (std::size_t at = 0; at < piece.size();) {
      const bool space = piece.compare(at, kSpacePiece.size(), kSpacePiece) == 0;
      text += space ? ' ' : piece[at];
      at += space ? kSpacePiece.size() : 1;
    }
  }

  fs::path model_;
  sentencepiece::SentencePieceProcessor processor_;
  std::array<int, 256> byte_ids_{};
  bool has_bytes_ = false;
  bool exact_ = false;     // every input comes back
  bool prefixed_ = false;  // a space is put in front of each text
  std::uint64_t fingerprint_ = 0;
};

}  // namespace

std::unique_ptr<Tokenizer> open_sentencepiece(const fs::path& model) {
  return std::make_unique<SentencepieceTokenizer>(model);
}

}  // namespace quatrain
