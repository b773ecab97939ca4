// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/testing/recording_file_system.h"

namespace quatrain::testing {

using Kind = FileOperation::Kind;

std::vector<FileOperation> RecordingFileSystem::operations() const {
  const std::lock_guard lock(mutex_);
  return operations_;
}

int RecordingFileSystem::create(const Path& path) {
  const std::lock_guard lock(mutex_);
  const int file = inner_.create(path);
  if (file < 0) return file;
  open_[file] = path.string();
  operations_.push_back({Kind::kCreate, path.string()});
  return file;
}

int RecordingFileSystem::close(int file) {
  const std::lock_guard lock(mutex_);
  open_.erase(file);
  return inner_.close(file);
}

std::int64_t RecordingFileSystem::write(int file, std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  const std::int64_t n = inner_.write(file, bytes);
  if (n <= 0) return n;
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  operations_.push_back({Kind::kWrite, open_.at(file), "", {text, static_cast<std::size_t>(n)}});
  return n;
}

int RecordingFileSystem::sync(int file) {
  const std::lock_guard lock(mutex_);
  const int result = inner_.sync(file);
  if (result == 0) operations_.push_back({Kind::kSync, open_.at(file)});
  return result;
}

int RecordingFileSystem::make_folder(const Path& path) {
  const std::lock_guard lock(mutex_);
  const int result = inner_.make_folder(path);
  if (result == 0) operations_.push_back({Kind::kMakeFolder, path.string()});
  return result;
}

int RecordingFileSystem::rename(const Path& from, const Path& to) {
  const std::lock_guard lock(mutex_);
  const int result = inner_.rename(from, to);
  if (result == 0) operations_.push_back({Kind::kRename, from.string(), to.string()});
  return result;
}

int RecordingFileSystem::remove(const Path& path) {
  const std::lock_guard lock(mutex_);
  const int result = inner_.remove(path);
  if (result == 0) operations_.push_back({Kind::kRemove, path.string()});
  return result;
}

int RecordingFileSystem::sync_folder(const Path& path) {
  const std::lock_guard lock(mutex_);
  const int result = inner_.sync_folder(path);
  if (result == 0) operations_.push_back({Kind::kSyncFolder, path.string()});
  return result;
}

}  // namespace quatrain::testing
