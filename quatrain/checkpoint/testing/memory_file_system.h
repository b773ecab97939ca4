// SPDX-License-Identifier: Apache-2.0
// A file system in memory: fast, and its content can be set and damaged. Thread-safe.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "quatrain/checkpoint/file_system.h"

namespace quatrain::testing {

class MemoryFileSystem final : public FileSystem {
 public:
  using Files = std::map<std::string, std::string>;  // content by path

  MemoryFileSystem() = default;
  // With these files; the folders above them, and `folders`, are there.
  explicit MemoryFileSystem(const Files& files, const std::set<std::string>& folders = {});

  Files files() const;
  void set(const std::string& path, std::string content);
  void set_free_bytes(std::int64_t bytes) { free_bytes_ = bytes; }
  int open_files() const;

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

 private:
  using Content = std::shared_ptr<std::string>;
  int opened(Content content);
  bool has_folder(const std::string& path) const;

  mutable std::mutex mutex_;
  std::map<std::string, Content> files_;
  std::set<std::string> folders_{"/"};
  std::vector<Content> open_;  // by handle; null: closed
  std::int64_t free_bytes_ = std::int64_t{1} << 40;
};

}  // namespace quatrain::testing
