// SPDX-License-Identifier: Apache-2.0
// A library to preload: the k-th call of one kind on a path fails. By environment:
//   FAULT_CALL   write, fsync, rename or open
//   FAULT_UNDER  text that the path must hold
//   FAULT_AT     k, from 1; "3-" is the third and every later one
//   FAULT_ERROR  an error number; 0 makes a write short
// It says on stderr when it strikes.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

template <class F>
F* real(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

const char* setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Whether this call is to fail, with errno set.
bool strikes(const char* call, const char* path) {
  static std::atomic<long> count = 0;
  if (std::strcmp(setting("FAULT_CALL"), call) != 0) return false;
  if (std::strstr(path, setting("FAULT_UNDER")) == nullptr) return false;
  char* rest = nullptr;
  const long at = std::strtol(setting("FAULT_AT"), &rest, 10);
  const long n = ++count;
  if (n != at && !(n > at && *rest == '-')) return false;
  ::dprintf(STDERR_FILENO, "fault: %s %ld of %s\n", call, n, path);
  errno = static_cast<int>(std::strtol(setting("FAULT_ERROR"), nullptr, 10));
  return true;
}

bool strikes(const char* call, int file) {
  char link[64];
  char path[PATH_MAX + 1];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t size = ::readlink(link, path, PATH_MAX);
  if (size < 0) return false;
  path[size] = '\0';
  return strikes(call, path);
}

using Open = int(const char*, int, ...);

int open_or_fail(const char* name, const char* path, int flags, mode_t mode) {
  if (strikes("open", path)) return -1;
  return real<Open>(name)(path, flags, mode);
}

mode_t mode_of(int flags, std::va_list arguments) {
  return (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

extern "C" {

ssize_t write(int file, const void* bytes, size_t size) {
  auto* next = real<ssize_t(int, const void*, size_t)>("write");
  if (!strikes("write", file)) return next(file, bytes, size);
  return errno != 0 || size < 2 ? -1 : next(file, bytes, size / 2);
}

int fsync(int file) { return strikes("fsync", file) ? -1 : real<int(int)>("fsync")(file); }

int rename(const char* from, const char* to) noexcept {
  return strikes("rename", to) ? -1 : real<int(const char*, const char*)>("rename")(from, to);
}

int open(const char* path, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_or_fail("open", path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_or_fail("open64", path, flags, mode);
}

}  // extern "C"
