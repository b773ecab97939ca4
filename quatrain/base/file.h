// SPDX-License-Identifier: Apache-2.0
// Files: whole reads, atomic whole writes, memory maps. Errors are StorageError with path and
// reason.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace quatrain {

std::string read_file(const std::filesystem::path& path);
// Temporary name in the same folder, write, fsync, rename, fsync of the folder.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

// A read-only map of a whole file; empty files map to an empty span.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::int64_t size() const { return static_cast<std::int64_t>(size_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace quatrain
