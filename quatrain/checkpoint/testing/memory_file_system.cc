// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/testing/memory_file_system.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace quatrain::testing {
namespace {

namespace fs = std::filesystem;

std::string folder_of(const std::string& path) { return fs::path(path).parent_path().string(); }

}  // namespace

MemoryFileSystem::MemoryFileSystem(const Files& files, const std::set<std::string>& folders) {
  for (const std::string& folder : folders) {
    for (fs::path up = folder; up != "/"; up = up.parent_path()) folders_.insert(up.string());
  }
  for (const auto& [path, content] : files) set(path, content);
}

MemoryFileSystem::Files MemoryFileSystem::files() const {
  const std::lock_guard lock(mutex_);
  Files files;
  for (const auto& [path, content] : files_) files[path] = *content;
  return files;
}

void MemoryFileSystem::set(const std::string& path, std::string content) {
  const std::lock_guard lock(mutex_);
  files_[path] = std::make_shared<std::string>(std::move(content));
  for (fs::path up = folder_of(path); up != "/"; up = up.parent_path())
    folders_.insert(up.string());
}

int MemoryFileSystem::open_files() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(
      std::count_if(open_.begin(), open_.end(), [](const Content& c) { return c != nullptr; }));
}

bool MemoryFileSystem::has_folder(const std::string& path) const { return folders_.contains(path); }

int MemoryFileSystem::opened(Content content) {
  const auto free = std::find(open_.begin(), open_.end(), nullptr);
  const auto handle = static_cast<int>(free - open_.begin());
  if (free == open_.end()) open_.emplace_back();
  open_[static_cast<std::size_t>(handle)] = std::move(content);
  return handle;
}

int MemoryFileSystem::create(const Path& path) {
  const std::lock_guard lock(mutex_);
  if (!has_folder(folder_of(path.string()))) return -ENOENT;
  Content& content = files_[path.string()];
  if (content == nullptr) content = std::make_shared<std::string>();
  content->clear();
  return opened(content);
}

int MemoryFileSystem::open(const Path& path) {
  const std::lock_guard lock(mutex_);
  const auto file = files_.find(path.string());
  return file == files_.end() ? -ENOENT : opened(file->second);
}

int MemoryFileSystem::close(int file) {
  const std::lock_guard lock(mutex_);
  open_.at(static_cast<std::size_t>(file)) = nullptr;
  return 0;
}

std::int64_t MemoryFileSystem::write(int file, std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  open_.at(static_cast<std::size_t>(file))
      ->append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return static_cast<std::int64_t>(bytes.size());
}

std::int64_t MemoryFileSystem::read(int file, std::span<std::byte> into, std::int64_t offset) {
  const std::lock_guard lock(mutex_);
  const std::string& content = *open_.at(static_cast<std::size_t>(file));
  const auto begin = std::min(static_cast<std::size_t>(offset), content.size());
  const std::size_t n = std::min(into.size(), content.size() - begin);
  if (n > 0) std::memcpy(into.data(), content.data() + begin, n);
  return static_cast<std::int64_t>(n);
}

std::int64_t MemoryFileSystem::size(int file) {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(open_.at(static_cast<std::size_t>(file))->size());
}

int MemoryFileSystem::sync(int) { return 0; }

int MemoryFileSystem::make_folder(const Path& path) {
  const std::lock_guard lock(mutex_);
  if (!has_folder(folder_of(path.string()))) return -ENOENT;
  if (files_.contains(path.string())) return -EEXIST;
  return folders_.insert(path.string()).second ? 0 : -EEXIST;
}

int MemoryFileSystem::rename(const Path& from, const Path& to) {
  const std::lock_guard lock(mutex_);
  const auto file = files_.find(from.string());
  if (file == files_.end() || !has_folder(folder_of(to.string()))) return -ENOENT;
  Content content = std::move(file->second);
  files_.erase(file);
  files_[to.string()] = std::move(content);
  return 0;
}

int MemoryFileSystem::remove(const Path& path) {
  const std::lock_guard lock(mutex_);
  if (files_.erase(path.string()) > 0) return 0;
  if (!has_folder(path.string())) return -ENOENT;
  const std::string below = path.string() + "/";
  const auto inside = [&](const auto& names, const auto& name_of) {
    const auto first = names.lower_bound(below);
    return first != names.end() && name_of(*first).starts_with(below);
  };
  if (inside(files_, [](const auto& entry) { return entry.first; }) ||
      inside(folders_, [](const std::string& name) { return name; })) {
    return -ENOTEMPTY;
  }
  folders_.erase(path.string());
  return 0;
}

int MemoryFileSystem::sync_folder(const Path& path) {
  const std::lock_guard lock(mutex_);
  return has_folder(path.string()) ? 0 : -ENOENT;
}

int MemoryFileSystem::list(const Path& path, std::vector<std::string>& names) {
  const std::lock_guard lock(mutex_);
  names.clear();
  if (!has_folder(path.string())) return files_.contains(path.string()) ? -ENOTDIR : -ENOENT;
  for (const auto& [name, content] : files_) {
    if (folder_of(name) == path.string()) names.push_back(fs::path(name).filename().string());
  }
  for (const std::string& name : folders_) {
    if (name != "/" && folder_of(name) == path.string()) {
      names.push_back(fs::path(name).filename().string());
    }
  }
  return 0;
}

std::int64_t MemoryFileSystem::free_bytes(const Path&) { return free_bytes_; }

}  // namespace quatrain::testing
