// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/storage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "quatrain/base/error.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostWaiting = 256 << 10;

[[noreturn]] void fail(std::string_view doing, const fs::path& path, std::int64_t error) {
  throw StorageError(fmt::format("cannot {} {}: {}", doing, path.string(),
                                 std::generic_category().message(static_cast<int>(-error))));
}

// Calls until it is not interrupted.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result == -EINTR) result = call();
  return result;
}

template <class Call>
auto must(std::string_view doing, const fs::path& path, const Call& call) {
  const auto result = uninterrupted(call);
  if (result < 0) fail(doing, path, result);
  return result;
}

// The size of an open file, which is closed when the system does not say.
std::int64_t size_or_close(FileSystem& files, const fs::path& path, int file) {
  const std::int64_t size = uninterrupted([&] { return files.size(file); });
  if (size >= 0) return size;
  files.close(file);
  fail("read", path, size);
}

fs::path parent_of(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

}  // namespace

OutputFile::OutputFile(FileSystem& files, fs::path path)
    : files_(files),
      path_(std::move(path)),
      file_(must("create", path_, [this] { return files_.create(path_); })) {}

OutputFile::~OutputFile() {
  if (file_ >= 0) files_.close(file_);
}

void OutputFile::write(std::span<const std::byte> bytes) {
  if (waiting_.size() + bytes.size() <= kMostWaiting) {
    waiting_.insert(waiting_.end(), bytes.begin(), bytes.end());
    return;
  }
  write_now(waiting_);
  waiting_.clear();
  write_now(bytes);
}

void OutputFile::write_now(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::int64_t n = must("write", path_, [&] { return files_.write(file_, bytes); });
    if (n == 0) fail("write", path_, -EIO);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void OutputFile::finish() {
  write_now(waiting_);
  must("sync", path_, [this] { return files_.sync(file_); });
  // Why: an interrupted close has closed.
  const int closed = files_.close(std::exchange(file_, -1));
  if (closed < 0 && closed != -EINTR) fail("close", path_, closed);
}

InputFile::InputFile(FileSystem& files, fs::path path)
    : InputFile(files, path, must("open", path, [&] { return files.open(path); })) {}

InputFile::InputFile(FileSystem& files, fs::path path, int opened)
    : files_(files),
      path_(std::move(path)),
      file_(opened),
      size_(size_or_close(files_, path_, file_)) {}

InputFile::~InputFile() { files_.close(file_); }

void InputFile::read(std::span<std::byte> into, std::int64_t offset) {
  while (!into.empty()) {
    const std::int64_t n = must("read", path_, [&] { return files_.read(file_, into, offset); });
    if (n == 0) {
      throw DataError(fmt::format("{} ends at byte {} (truncated)", path_.string(), offset));
    }
    into = into.subspan(static_cast<std::size_t>(n));
    offset += n;
  }
}

std::optional<std::vector<std::string>> list_folder(FileSystem& files, const fs::path& path) {
  std::vector<std::string> names;
  const int result = uninterrupted([&] { return files.list(path, names); });
  if (result == -ENOENT || result == -ENOTDIR) return std::nullopt;
  if (result < 0) fail("list", path, result);
  std::sort(names.begin(), names.end());
  return names;
}

void make_folders(FileSystem& files, const fs::path& path) {
  int result = uninterrupted([&] { return files.make_folder(path); });
  if (result == -ENOENT) {
    make_folders(files, parent_of(path));
    result = uninterrupted([&] { return files.make_folder(path); });
  }
  if (result == -EEXIST && list_folder(files, path)) return;
  if (result < 0) fail("make folder", path, result);
  sync_folder(files, parent_of(path));
}

void sync_folder(FileSystem& files, const fs::path& path) {
  must("sync folder", path, [&] { return files.sync_folder(path); });
}

void rename_file(FileSystem& files, const fs::path& from, const fs::path& to) {
  must("rename to", to, [&] { return files.rename(from, to); });
}

void remove_file(FileSystem& files, const fs::path& path) {
  const int result = uninterrupted([&] { return files.remove(path); });
  if (result < 0 && result != -ENOENT) fail("remove", path, result);
}

bool remove_folder(FileSystem& files, const fs::path& path) {
  const int result = uninterrupted([&] { return files.remove(path); });
  if (result == -ENOTEMPTY || result == -EEXIST) return false;
  if (result < 0 && result != -ENOENT) fail("remove", path, result);
  return true;
}

std::optional<std::string> read_text(FileSystem& files, const fs::path& path) {
  const int file = uninterrupted([&] { return files.open(path); });
  if (file == -ENOENT || file == -ENOTDIR) return std::nullopt;
  if (file < 0) fail("open", path, file);
  InputFile input(files, path, file);
  std::string text(static_cast<std::size_t>(input.size()), '\0');
  input.read(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

}  // namespace quatrain
