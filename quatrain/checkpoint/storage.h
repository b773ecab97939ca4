// SPDX-License-Identifier: Apache-2.0
// Files over a FileSystem, whole or not at all: short counts are continued, interrupted calls
// repeated. Errors are StorageError naming operation, path and the system's reason.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/checkpoint/file_system.h"

namespace quatrain {

// A new file, written from its start to its end. What was not made durable is worth nothing: its
// owner removes it.
class OutputFile {
 public:
  OutputFile(FileSystem& files, std::filesystem::path path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  // Small ones wait for more, up to 256 KiB.
  void write(std::span<const std::byte> bytes);
  // Syncs and closes. A sync that failed is never tried again: the system may have dropped the
  // pages that it could not write, and the next one would succeed without them.
  void finish();

 private:
  void write_now(std::span<const std::byte> bytes);
  FileSystem& files_;
  std::filesystem::path path_;
  int file_;
  std::vector<std::byte> waiting_;
};

class InputFile {
 public:
  InputFile(FileSystem& files, std::filesystem::path path);
  InputFile(FileSystem& files, std::filesystem::path path, int opened);  // takes the open file
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  std::int64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }
  // Fills `into`; DataError when the file ends before.
  void read(std::span<std::byte> into, std::int64_t offset);

 private:
  FileSystem& files_;
  std::filesystem::path path_;
  int file_;
  std::int64_t size_;
};

// The names in a folder, sorted; none when there is no such folder.
std::optional<std::vector<std::string>> list_folder(FileSystem& files,
                                                    const std::filesystem::path& path);
// With the folders above it, and durable; nothing when it is there.
void make_folders(FileSystem& files, const std::filesystem::path& path);
void sync_folder(FileSystem& files, const std::filesystem::path& path);
void rename_file(FileSystem& files, const std::filesystem::path& from,
                 const std::filesystem::path& to);
void remove_file(FileSystem& files, const std::filesystem::path& path);  // nothing if absent
// False when it still holds something.
bool remove_folder(FileSystem& files, const std::filesystem::path& path);
// None when there is no such file.
std::optional<std::string> read_text(FileSystem& files, const std::filesystem::path& path);

}  // namespace quatrain
