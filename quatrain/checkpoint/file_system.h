// SPDX-License-Identifier: Apache-2.0
// The calls that checkpoints make of a file system, as the system answers them: short counts, EINTR
// and error numbers come through, so that a double can give them. storage.h turns them into whole
// reads, whole writes and StorageError.
// Threads: a FileSystem may be called by several at once; an open file belongs to one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace quatrain {

// Every call returns a count, a size or a handle, at least 0; or an error number, negated.
class FileSystem {
 public:
  using Path = std::filesystem::path;
  virtual ~FileSystem() = default;

  virtual int create(const Path& path) = 0;  // for writing, emptied when it exists
  virtual int open(const Path& path) = 0;    // for reading
  virtual int close(int file) = 0;
  virtual std::int64_t write(int file, std::span<const std::byte> bytes) = 0;  // at its end
  virtual std::int64_t read(int file, std::span<std::byte> into, std::int64_t offset) = 0;
  virtual std::int64_t size(int file) = 0;
  virtual int sync(int file) = 0;  // content and size are durable after it

  virtual int make_folder(const Path& path) = 0;
  virtual int rename(const Path& from, const Path& to) = 0;  // replaces `to`, atomically
  virtual int remove(const Path& path) = 0;                  // a file or an empty folder
  virtual int sync_folder(const Path& path) = 0;  // its names are durable after it, not theirs
  virtual int list(const Path& path, std::vector<std::string>& names) = 0;  // in any order
  virtual std::int64_t free_bytes(const Path& path) = 0;
};

class PosixFileSystem final : public FileSystem {
 public:
  int create(const Path& path) override;
  int open(const Path& path) override;
  int close(int file) override;
  std::int64_t write(int file, std::span<const std::byte> bytes) override;
  std::int64_t read(int file, std::span<std::byte> into, std::int64_t offset) override;
  std::int64_t size(int file) override;
  int sync(int file) override;
  int make_folder(const Path& path) override;
  int rename(const Path& from, const Path& to) override;
  int remove(const Path& path) override;
  int sync_folder(const Path& path) override;
  int list(const Path& path, std::vector<std::string>& names) override;
  std::int64_t free_bytes(const Path& path) override;
};

}  // namespace quatrain
