// SPDX-License-Identifier: Apache-2.0
// Megatron's .idx, read with every field distrusted: the counts bound the arrays, the arrays bound
// the .bin.
#include "quatrain/data/megatron_index.h"

#include <fmt/format.h>

#include <string>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"

namespace quatrain {
namespace {

[[noreturn]] void damaged_index(const std::filesystem::path& file, const std::string& rule) {
  throw DataError(fmt::format("{}: damaged Megatron index: {}", file.string(), rule));
}

TokenType type_of_code(const std::filesystem::path& file, int code) {
  switch (code) {
    case 1:
      return TokenType::kU8;
    case 2:
      return TokenType::kI8;
    case 3:
      return TokenType::kI16;
    case 4:
      return TokenType::kI32;
    case 5:
      return TokenType::kI64;
    case 8:
      return TokenType::kU16;
    case 6:
    case 7:
      damaged_index(file, fmt::format("type code {} is a float; token ids are integers", code));
    default:
      damaged_index(file, fmt::format("type code {} is none of 1 2 3 4 5 8", code));
  }
}

// The arrays behind the header, as byte offsets into the file.
struct Arrays {
  const std::byte* base;
  std::int64_t sequences, boundaries;
  const std::byte* lengths() const { return base + kMegatronHeaderBytes; }
  const std::byte* pointers() const { return lengths() + 4 * sequences; }
  const std::byte* documents() const { return pointers() + 8 * sequences; }
};

Arrays check_header(const MappedFile& file) {
  const std::filesystem::path& path = file.path();
  const std::byte* base = file.bytes().data();
  if (file.size() < kMegatronHeaderBytes) {
    damaged_index(path, fmt::format("{} bytes are shorter than the header of {}", file.size(),
                                    kMegatronHeaderBytes));
  }
  if (std::memcmp(base, kMegatronMagic.data(), kMegatronMagic.size()) != 0) {
    damaged_index(path, "the file does not begin with MMIDIDX");
  }
  if (const auto version = load<std::uint64_t>(base + 9); version != 1) {
    damaged_index(path, fmt::format("version {} instead of 1", version));
  }
  const auto sequences = load<std::uint64_t>(base + 18);
  const auto boundaries = load<std::uint64_t>(base + 26);
  const auto room = static_cast<std::uint64_t>(file.size() - kMegatronHeaderBytes);
  if (sequences > room / 12 || boundaries > (room - 12 * sequences) / 8) {
    damaged_index(path,
                  fmt::format("{} sequences and {} document boundaries need more than its {} bytes "
                              "(truncated?)",
                              sequences, boundaries, file.size()));
  }
  const std::uint64_t rest = room - 12 * sequences - 8 * boundaries;
  if (rest != 0 && rest != sequences) {
    damaged_index(path, fmt::format("{} bytes after the last array; {} sequences allow 0 or {}",
                                    rest, sequences, sequences));
  }
  return {base, static_cast<std::int64_t>(sequences), static_cast<std::int64_t>(boundaries)};
}

// First token of each sequence, and the total.
std::vector<std::int64_t> sequence_begins(const std::filesystem::path& path, const Arrays& arrays,
                                          std::int64_t id_bytes) {
  std::vector<std::int64_t> begins(static_cast<std::size_t>(arrays.sequences) + 1, 0);
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < arrays.sequences; ++i) {
    const auto length = load<std::int32_t>(arrays.lengths() + 4 * i);
    if (length < 0) damaged_index(path, fmt::format("sequence {} has length {}", i, length));
    const auto pointer = load<std::int64_t>(arrays.pointers() + 8 * i);
    if (pointer != tokens * id_bytes) {
      damaged_index(path, fmt::format("sequence {} points at byte {}; the one before ends at {}", i,
                                      pointer, tokens * id_bytes));
    }
    tokens += length;
    begins[static_cast<std::size_t>(i) + 1] = tokens;
  }
  return begins;
}

}  // namespace

MegatronIndex read_megatron_index(const std::filesystem::path& idx, std::int64_t bin_bytes) {
  const MappedFile file(idx);
  const Arrays arrays = check_header(file);
  MegatronIndex index;
  index.type = type_of_code(idx, load<std::uint8_t>(arrays.base + 17));
  const std::vector<std::int64_t> begins = sequence_begins(idx, arrays, width(index.type));
  index.tokens = begins.back();
  if (index.tokens * width(index.type) != bin_bytes) {
    damaged_index(
        idx,
        fmt::format("{} ids of {} bytes are {} bytes, but the .bin has {} (of another "
                    "width, truncated, or of another index)",
                    index.tokens, width(index.type), index.tokens * width(index.type), bin_bytes));
  }
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < arrays.boundaries; ++i) {
    const auto boundary = load<std::int64_t>(arrays.documents() + 8 * i);
    if (boundary < last || boundary > arrays.sequences || (i == 0 && boundary != 0)) {
      damaged_index(idx, fmt::format("document boundary {} is {}; boundaries ascend from 0 to {}",
                                     i, boundary, arrays.sequences));
    }
    last = boundary;
    index.document_begins.push_back(begins[static_cast<std::size_t>(boundary)]);
  }
  if (last != arrays.sequences) {
    damaged_index(idx,
                  fmt::format("the documents end at sequence {} of {}", last, arrays.sequences));
  }
  return index;
}

int megatron_code(TokenType type) {
  switch (type) {
    case TokenType::kU8:
      return 1;
    case TokenType::kI8:
      return 2;
    case TokenType::kI16:
      return 3;
    case TokenType::kI32:
      return 4;
    case TokenType::kI64:
      return 5;
    case TokenType::kU16:
      return 8;
    case TokenType::kU32:
      break;
  }
  return -1;
}

}  // namespace quatrain
