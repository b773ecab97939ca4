// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/testing/faulty_file_system.h"

namespace quatrain::testing {

std::string_view name(FileCall call) {
  static constexpr std::array<std::string_view, kNumFileCalls> kNames{
      "create",      "open",   "close",  "write",       "read", "size",      "sync",
      "make_folder", "rename", "remove", "sync_folder", "list", "free_bytes"};
  return kNames[static_cast<std::size_t>(call)];
}

FaultyFileSystem::FaultyFileSystem(FileSystem& inner, FileFault fault)
    : inner_(inner), fault_(fault) {}

void FaultyFileSystem::set(FileFault fault) {
  fault_ = fault;
  for (auto& calls : calls_) calls = 0;
  struck_ = false;
}

std::int64_t FaultyFileSystem::calls(FileCall call) const {
  return calls_[static_cast<std::size_t>(call)];
}

bool FaultyFileSystem::strikes(FileCall call) {
  if (watcher_) watcher_(call);
  const std::int64_t number = ++calls_[static_cast<std::size_t>(call)];
  if (fault_.number == 0 || call != fault_.call) return false;
  const bool strikes = number == fault_.number || (fault_.stays && number > fault_.number);
  if (strikes) struck_ = true;
  return strikes;
}

template <class Call>
auto FaultyFileSystem::guarded(FileCall call, const Call& inner) {
  using Result = decltype(inner());
  const bool fails = strikes(call) && fault_.error != FileFault::kShort;
  return fails ? static_cast<Result>(-fault_.error) : inner();
}

int FaultyFileSystem::create(const Path& path) {
  return guarded(FileCall::kCreate, [&] { return inner_.create(path); });
}
int FaultyFileSystem::open(const Path& path) {
  return guarded(FileCall::kOpen, [&] { return inner_.open(path); });
}
int FaultyFileSystem::close(int file) {
  const int result = inner_.close(file);  // whatever it says, it has closed
  return guarded(FileCall::kClose, [&] { return result; });
}
std::int64_t FaultyFileSystem::write(int file, std::span<const std::byte> bytes) {
  const bool strikes_now = strikes(FileCall::kWrite);
  if (strikes_now && fault_.error != FileFault::kShort) return -fault_.error;
  return inner_.write(file, strikes_now ? bytes.first((bytes.size() + 1) / 2) : bytes);
}
std::int64_t FaultyFileSystem::read(int file, std::span<std::byte> into, std::int64_t offset) {
  const bool strikes_now = strikes(FileCall::kRead);
  if (strikes_now && fault_.error != FileFault::kShort) return -fault_.error;
  return inner_.read(file, strikes_now ? into.first((into.size() + 1) / 2) : into, offset);
}
std::int64_t FaultyFileSystem::size(int file) {
  return guarded(FileCall::kSize, [&] { return inner_.size(file); });
}
int FaultyFileSystem::sync(int file) {
  return guarded(FileCall::kSync, [&] { return inner_.sync(file); });
}
int FaultyFileSystem::make_folder(const Path& path) {
  return guarded(FileCall::kMakeFolder, [&] { return inner_.make_folder(path); });
}
int FaultyFileSystem::rename(const Path& from, const Path& to) {
  return guarded(FileCall::kRename, [&] { return inner_.rename(from, to); });
}
int FaultyFileSystem::remove(const Path& path) {
  return guarded(FileCall::kRemove, [&] { return inner_.remove(path); });
}
int FaultyFileSystem::sync_folder(const Path& path) {
  return guarded(FileCall::kSyncFolder, [&] { return inner_.sync_folder(path); });
}
int FaultyFileSystem::list(const Path& path, std::vector<std::string>& names) {
  return guarded(FileCall::kList, [&] { return inner_.list(path, names); });
}
std::int64_t FaultyFileSystem::free_bytes(const Path& path) {
  return guarded(FileCall::kFreeBytes, [&] { return inner_.free_bytes(path); });
}

}  // namespace quatrain::testing
