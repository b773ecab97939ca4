// SPDX-License-Identifier: Apache-2.0
// A file system of which one call goes wrong, or all from that one on. Thread-safe.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

#include "quatrain/checkpoint/file_system.h"

namespace quatrain::testing {

enum class FileCall : std::uint8_t {
  kCreate,
  kOpen,
  kClose,
  kWrite,
  kRead,
  kSize,
  kSync,
  kMakeFolder,
  kRename,
  kRemove,
  kSyncFolder,
  kList,
  kFreeBytes
};
inline constexpr std::size_t kNumFileCalls = 13;
std::string_view name(FileCall call);

struct FileFault {
  static constexpr int kShort = 0;  // half of the bytes, where a count is returned
  FileCall call = FileCall::kWrite;
  std::int64_t number = 1;  // of the calls of that kind, from 1; 0: none
  int error = kShort;       // an error number
  bool stays = false;       // later ones fail too: a full disk
};

class FaultyFileSystem final : public FileSystem {
 public:
  // `inner` outlives it.
  explicit FaultyFileSystem(FileSystem& inner, FileFault fault = {.number = 0});
  void set(FileFault fault);  // and counts anew
  // Called before each call, on its thread: to wait, or to look.
  void set_watcher(std::function<void(FileCall)> watcher) { watcher_ = std::move(watcher); }
  std::int64_t calls(FileCall call) const;
  bool struck() const { return struck_; }

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
  bool strikes(FileCall call);
  template <class Call>
  auto guarded(FileCall call, const Call& inner);

  FileSystem& inner_;
  FileFault fault_;
  std::function<void(FileCall)> watcher_;
  std::array<std::atomic<std::int64_t>, kNumFileCalls> calls_{};
  std::atomic<bool> struck_{false};
};

}  // namespace quatrain::testing
