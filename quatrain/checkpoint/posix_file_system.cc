// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string_view>

#include "quatrain/checkpoint/file_system.h"

namespace quatrain {
namespace {

// Linux moves at most this many bytes a call.
constexpr std::size_t kMostBytes = 1U << 30;

// The disk begins with what is written after every so many bytes of a file.
constexpr std::int64_t kBegunBytes = 8 << 20;

template <class Number>
Number or_error(Number result) {
  return result < 0 ? static_cast<Number>(-errno) : result;
}

// Why: the system would wait with most of it for the sync(), and the disk be idle until then. Its
// answer changes nothing: what cannot be written, sync() reports.
void begin_to_sync(int file, std::int64_t written) {
  const off_t end = ::lseek(file, 0, SEEK_CUR);
  if (end / kBegunBytes == (end - written) / kBegunBytes) return;
  ::sync_file_range(file, 0, 0, SYNC_FILE_RANGE_WRITE);  // all that no one has begun with
}

}  // namespace

int PosixFileSystem::create(const Path& path) {
  return or_error(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
}

int PosixFileSystem::open(const Path& path) {
  return or_error(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

int PosixFileSystem::close(int file) { return or_error(::close(file)); }

std::int64_t PosixFileSystem::write(int file, std::span<const std::byte> bytes) {
  const auto n =
      static_cast<std::int64_t>(::write(file, bytes.data(), std::min(bytes.size(), kMostBytes)));
  if (n > 0) begin_to_sync(file, n);
  return or_error(n);
}

std::int64_t PosixFileSystem::read(int file, std::span<std::byte> into, std::int64_t offset) {
  return or_error(static_cast<std::int64_t>(
      ::pread(file, into.data(), std::min(into.size(), kMostBytes), offset)));
}

std::int64_t PosixFileSystem::size(int file) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return -errno;
  return S_ISDIR(status.st_mode) ? -EISDIR : status.st_size;
}

int PosixFileSystem::sync(int file) { return or_error(::fsync(file)); }

int PosixFileSystem::make_folder(const Path& path) { return or_error(::mkdir(path.c_str(), 0777)); }

int PosixFileSystem::rename(const Path& from, const Path& to) {
  return or_error(::rename(from.c_str(), to.c_str()));
}

int PosixFileSystem::remove(const Path& path) { return or_error(::remove(path.c_str())); }

int PosixFileSystem::sync_folder(const Path& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return -errno;
  int result = or_error(::fsync(folder));
  // Why: some file systems cannot sync a folder; their names are as safe as they get.
  if (result == -EINVAL) result = 0;
  ::close(folder);
  return result;
}

int PosixFileSystem::list(const Path& path, std::vector<std::string>& names) {
  names.clear();
  DIR* folder = ::opendir(path.c_str());
  if (folder == nullptr) return -errno;
  errno = 0;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  const int result = -errno;
  ::closedir(folder);
  return result;
}

std::int64_t PosixFileSystem::free_bytes(const Path& path) {
  struct statvfs status {};
  if (::statvfs(path.c_str(), &status) != 0) return -errno;
  return static_cast<std::int64_t>(status.f_bavail) * static_cast<std::int64_t>(status.f_frsize);
}

}  // namespace quatrain
