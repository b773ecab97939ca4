// SPDX-License-Identifier: Apache-2.0
// The safetensors format, read strictly and written canonically. Layout: u64 LE header length |
// JSON header | buffer. Stricter than the reference parser where two parsers could disagree:
// repeated names, unknown fields, null metadata, names with control characters.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quatrain {

struct TensorEntry {
  std::string name;
  std::string dtype;  // "F32", "BF16", ...
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  // bytes from the start of the buffer
  std::int64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in order of `begin`
  std::map<std::string, std::string> metadata;
  std::int64_t buffer_offset = 0;  // of the buffer in the file
};
// Parses the JSON header; `buffer_bytes`: size of what follows. Throws DataError naming the rule.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::int64_t buffer_bytes,
                                           bool allow_unknown_fields = false);
// The same from a file's bytes, whose header length is checked first.
SafetensorsHeader read_safetensors_header(std::span<const std::byte> file,
                                          bool allow_unknown_fields = false);

// What precedes the buffer of a file: length and header, padded with spaces to 8 bytes. Entries lie
// end to end, in their order; what a reader would refuse is a BugError.
std::string make_safetensors_header(const std::vector<TensorEntry>& entries,
                                    const std::map<std::string, std::string>& metadata = {});

// A memory-mapped file. Tensors are read by copy (starts may be unaligned).
class SafetensorsFile {
 public:
  // Throws DataError naming file and rule; StorageError when it cannot be opened or read.
  explicit SafetensorsFile(const std::filesystem::path& path, bool allow_unknown_fields = false);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  const SafetensorsHeader& header() const;
  bool has(std::string_view name) const;
  const TensorEntry& entry(std::string_view name) const;  // DataError when absent
  at::Tensor tensor(std::string_view name) const;         // a copy, in the file's dtype
  // Rows [begin, end) of the first dim, reading only their bytes.
  at::Tensor rows(std::string_view name, std::int64_t begin, std::int64_t end) const;
  // The same of a tensor [A, B, ...] taken as [A * B, ...].
  at::Tensor merged_rows(std::string_view name, std::int64_t begin, std::int64_t end) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Writes a file whole or not at all: temporary name, fsync, rename, fsync of the folder. Sorted by
// dtype (widest first), then name; header padded with spaces to 8 bytes. Throws StorageError.
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace quatrain
