// SPDX-License-Identifier: Apache-2.0
// Files over POSIX calls, so that every failure keeps the system's own reason.
#include "quatrain/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "quatrain/base/error.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(std::string_view doing, const fs::path& path, int reason) {
  throw StorageError(fmt::format("cannot {} {}: {}", doing, path.string(),
                                 std::generic_category().message(reason)));
}

class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags, std::string_view doing)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (fd_ < 0) fail(doing, path, errno);
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int close() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

std::size_t size_of(const Descriptor& file, const fs::path& path, std::string_view doing) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(doing, path, errno);
  if (S_ISDIR(status.st_mode)) fail(doing, path, EISDIR);
  return static_cast<std::size_t>(status.st_size);
}

void write_all(const Descriptor& file, const fs::path& path, std::string_view content) {
  while (!content.empty()) {
    const ssize_t n = ::write(file.get(), content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write", path, errno);
    content.remove_prefix(static_cast<std::size_t>(n));
  }
}

void write_temporary(const fs::path& temporary, const fs::path& path, std::string_view content) {
  Descriptor file(temporary, O_WRONLY | O_CREAT | O_TRUNC, "write");
  write_all(file, path, content);
  if (::fsync(file.get()) != 0) fail("write", path, errno);
  if (file.close() != 0) fail("write", path, errno);
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail("write", path, errno);
}

}  // namespace

std::string read_file(const fs::path& path) {
  Descriptor file(path, O_RDONLY, "read");
  std::string content(size_of(file, path, "read"), '\0');
  std::size_t done = 0;
  // Why: pipes and /proc report size 0, so the end is where read() says it is.
  while (true) {
    if (done == content.size()) content.resize(content.size() + 4096);
    const ssize_t n = ::read(file.get(), content.data() + done, content.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read", path, errno);
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  content.resize(done);
  return content;
}

void write_file_atomically(const fs::path& path, std::string_view content) {
  fs::path temporary = path;
  temporary += fmt::format(".{}.tmp", ::getpid());
  try {
    write_temporary(temporary, path, content);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  Descriptor directory(folder, O_RDONLY | O_DIRECTORY, "open folder");
  // Why: some file systems cannot sync a folder; the file itself is safe by then.
  if (::fsync(directory.get()) != 0 && errno != EINVAL) fail("sync folder", folder, errno);
}

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  Descriptor file(path, O_RDONLY, "map");
  size_ = size_of(file, path, "map");
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) fail("map", path, errno);
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace quatrain
