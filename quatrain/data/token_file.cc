// SPDX-License-Identifier: Apache-2.0
// Opens token files: which format a path is, and the rule that each format's size must keep.
// llm.c: 256 i32 (magic, version, count) then u16 or u32 ids. nanoGPT: u16 ids alone.
#include "quatrain/data/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/data/megatron_index.h"
#include "quatrain/data/token_type.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLlmcHeaderBytes = 1024;
constexpr std::int32_t kLlmcGpt2 = 20240520, kLlmcLlama3 = 20240801;

// All three formats are one row of ids behind an offset.
class FlatFile : public TokenFile {
 public:
  struct Layout {
    std::string_view format;
    TokenType type;
    std::int64_t offset_bytes;
    std::int64_t tokens;
    std::vector<std::int64_t> begins;
  };
  FlatFile(MappedFile map, Layout layout) : map_(std::move(map)), layout_(std::move(layout)) {}

  std::string_view format() const override { return layout_.format; }
  std::string_view dtype() const override { return name(layout_.type); }
  std::int64_t num_tokens() const override { return layout_.tokens; }
  std::span<const std::int64_t> document_begins() const override { return layout_.begins; }
  const fs::path& path() const override { return map_.path(); }

  void read(std::int64_t begin, std::span<std::int64_t> out) const override {
    const auto count = static_cast<std::int64_t>(out.size());
    if (begin < 0 || begin > layout_.tokens || count > layout_.tokens - begin) {
      throw DataError(fmt::format("{}: {} tokens from {} on are outside the file, which has {}",
                                  path().string(), count, begin, layout_.tokens));
    }
    const std::byte* from =
        map_.bytes().data() + layout_.offset_bytes + begin * width(layout_.type);
    with_token_type(layout_.type, [&](auto id) {
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<std::int64_t>(load<decltype(id)>(from + i * sizeof(id)));
      }
    });
  }

 private:
  MappedFile map_;
  Layout layout_;
};

[[noreturn]] void damaged(const fs::path& file, std::string_view format, const std::string& rule) {
  throw DataError(fmt::format("{}: not a valid {} token file: {}", file.string(), format, rule));
}

std::unique_ptr<TokenFile> open_megatron(const fs::path& bin, const fs::path& idx) {
  if (!fs::exists(idx)) damaged(bin, "megatron", fmt::format("{} is missing", idx.string()));
  if (!fs::exists(bin)) damaged(idx, "megatron", fmt::format("{} is missing", bin.string()));
  MappedFile map(bin);
  MegatronIndex index = read_megatron_index(idx, map.size());
  return std::make_unique<FlatFile>(
      std::move(map),
      FlatFile::Layout{"megatron", index.type, 0, index.tokens, std::move(index.document_begins)});
}

std::optional<std::int32_t> first_word(const MappedFile& map) {
  if (map.size() < 4) return std::nullopt;
  return load<std::int32_t>(map.bytes().data());
}

// What llm.c writes besides tokens, by its magic; empty: not one of them.
std::string_view other_llmc_file(std::int32_t magic) {
  switch (magic) {
    case 20240522:
      return "an evaluation set";
    case 20240326:
      return "model weights";
    case 20240527:
      return "an optimizer state";
    default:
      return {};
  }
}

std::unique_ptr<TokenFile> open_llmc(MappedFile map) {
  const fs::path path = map.path();
  if (map.size() < kLlmcHeaderBytes) {
    damaged(path, "llm.c", fmt::format("{} bytes are shorter than the header of 1024", map.size()));
  }
  const std::byte* base = map.bytes().data();
  const auto magic = load<std::int32_t>(base);
  const auto version = load<std::int32_t>(base + 4);
  const std::int64_t tokens = load<std::uint32_t>(base + 8);
  if (const std::string_view other = other_llmc_file(magic); !other.empty()) {
    damaged(path, "llm.c", fmt::format("magic {} marks {}, not tokens", magic, other));
  }
  if (magic != kLlmcGpt2 && magic != kLlmcLlama3) {
    damaged(path, "llm.c", fmt::format("magic {} is neither 20240520 nor 20240801", magic));
  }
  const int want = magic == kLlmcGpt2 ? 1 : 7;
  if (version != want) {
    damaged(path, "llm.c",
            fmt::format("version {} with magic {}, which wants {}", version, magic, want));
  }
  const TokenType type = magic == kLlmcGpt2 ? TokenType::kU16 : TokenType::kU32;
  if (const std::int64_t size = kLlmcHeaderBytes + tokens * width(type); size != map.size()) {
    damaged(path, "llm.c",
            fmt::format("its header says {} ids of {} bytes, {} bytes in all; the file has {} "
                        "(truncated, or of another width)",
                        tokens, width(type), size, map.size()));
  }
  return std::make_unique<FlatFile>(std::move(map),
                                    FlatFile::Layout{"llmc", type, kLlmcHeaderBytes, tokens, {}});
}

// 32-bit ids below 65,536 read as 16-bit ones are zero in every second place.
bool looks_32_bit(const MappedFile& map) {
  const std::int64_t count = std::min<std::int64_t>(map.size() / 2, 4096);
  bool any = false;
  for (std::int64_t i = 0; i < count; ++i) {
    const bool zero = load<std::uint16_t>(map.bytes().data() + 2 * i) == 0;
    if (i % 2 == 1 && !zero) return false;
    any = any || !zero;
  }
  return any && count >= 64;
}

std::unique_ptr<TokenFile> open_nanogpt(MappedFile map) {
  const fs::path path = map.path();
  if (map.size() == 0) damaged(path, "nanoGPT", "it is empty");
  if (map.size() % 2 != 0) {
    damaged(path, "nanoGPT", fmt::format("{} bytes are no whole number of u16 ids", map.size()));
  }
  const auto word = first_word(map).value_or(0);
  if (word == kLlmcGpt2 || word == kLlmcLlama3 || !other_llmc_file(word).empty()) {
    damaged(path, "nanoGPT", fmt::format("it begins with llm.c's magic {}", word));
  }
  if (map.size() >= 9 &&
      std::memcmp(map.bytes().data(), kMegatronMagic.data(), kMegatronMagic.size()) == 0) {
    damaged(path, "nanoGPT", "it is a Megatron .idx");
  }
  if (looks_32_bit(map)) {
    damaged(path, "nanoGPT", "every second u16 is 0: these are 32-bit ids, nanoGPT's are 16-bit");
  }
  const std::int64_t tokens = map.size() / 2;
  return std::make_unique<FlatFile>(std::move(map),
                                    FlatFile::Layout{"nanogpt", TokenType::kU16, 0, tokens, {}});
}

fs::path with_suffix(fs::path path, const char* suffix) { return path += suffix; }

// The .bin and .idx that a path names: "x.bin", "x.idx" or "x".
std::pair<fs::path, fs::path> megatron_pair(const fs::path& path) {
  const fs::path stem = path.extension() == ".bin" || path.extension() == ".idx"
                            ? fs::path(path).replace_extension()
                            : path;
  return {with_suffix(stem, ".bin"), with_suffix(stem, ".idx")};
}

std::unique_ptr<TokenFile> open_auto(const fs::path& path) {
  const auto [bin, idx] = megatron_pair(path);
  if (fs::exists(idx)) return open_megatron(bin, idx);
  MappedFile map(path);
  const auto word = first_word(map).value_or(0);
  if (word == kLlmcGpt2 || word == kLlmcLlama3 || !other_llmc_file(word).empty()) {
    return open_llmc(std::move(map));
  }
  if (path.extension() == ".bin") return open_nanogpt(std::move(map));
  throw DataError(
      fmt::format("{}: not a token file: neither llm.c's magic nor a .bin (Megatron's "
                  "with its .idx, or nanoGPT's); text needs data.format = \"text\"",
                  path.string()));
}

std::unique_ptr<TokenFile> open_folder(const fs::path& folder, TokenFormat format) {
  std::vector<fs::path> bins;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".bin") bins.push_back(entry.path());
  }
  std::sort(bins.begin(), bins.end());
  if (bins.empty()) {
    throw ConfigError(fmt::format("{}: no .bin token files in this folder", folder.string()));
  }
  std::vector<std::unique_ptr<TokenFile>> files;
  for (const fs::path& bin : bins) files.push_back(open_token_file(bin, format));
  return concatenate(std::move(files));
}

}  // namespace

std::unique_ptr<TokenFile> open_token_file(const fs::path& path, TokenFormat format) {
  std::error_code ignored;
  const auto [bin, idx] = megatron_pair(path);
  const bool megatron_prefix = fs::exists(idx, ignored) || fs::exists(bin, ignored);
  if (fs::is_directory(path, ignored)) return open_folder(path, format);
  if (!fs::exists(path, ignored) && !megatron_prefix) {
    throw ConfigError(fmt::format("{}: no such token file (nor {})", path.string(), idx.string()));
  }
  switch (format) {
    case TokenFormat::kAuto:
      return open_auto(path);
    case TokenFormat::kMegatron:
      return open_megatron(bin, idx);
    case TokenFormat::kLlmc:
      return open_llmc(MappedFile(path));
    case TokenFormat::kNanoGpt:
      break;
  }
  return open_nanogpt(MappedFile(path));
}

}  // namespace quatrain
