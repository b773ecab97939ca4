// SPDX-License-Identifier: Apache-2.0
// Keeps the order of the calls that change a file system, for crash_states.h. Thread-safe.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "quatrain/checkpoint/file_system.h"

namespace quatrain::testing {

struct FileOperation {
  enum class Kind : std::uint8_t {
    kCreate,
    kWrite,
    kSync,
    kMakeFolder,
    kRename,
    kRemove,
    kSyncFolder
  };
  Kind kind;
  std::string path;        // of the file: of an open one, what it was created as
  std::string to = {};     // of a rename
  std::string bytes = {};  // of a write, at the file's end
};

class RecordingFileSystem final : public FileSystem {
 public:
  explicit RecordingFileSystem(FileSystem& inner) : inner_(inner) {}  // outlives it
  std::vector<FileOperation> operations() const;

  int create(const Path& path) override;
  int open(const Path& path) override { return inner_.open(path); }
  int close(int file) override;
  std::int64_t write(int file, std::span<const std::byte> bytes) override;
  std::int64_t read(int file, std::span<std::byte> into, std::int64_t offset) override {
    return inner_.read(file, into, offset);
  }
  std::int64_t size(int file) override { return inner_.size(file); }
  int sync(int file) override;
  int make_folder(const Path& path) override;
  int rename(const Path& from, const Path& to) override;
  int remove(const Path& path) override;
  int sync_folder(const Path& path) override;
  int list(const Path& path, std::vector<std::string>& names) override {
    return inner_.list(path, names);
  }
  std::int64_t free_bytes(const Path& path) override { return inner_.free_bytes(path); }

 private:
  FileSystem& inner_;
  mutable std::mutex mutex_;
  std::map<int, std::string> open_;  // files being written, by handle
  std::vector<FileOperation> operations_;
};

}  // namespace quatrain::testing
