// SPDX-License-Identifier: Apache-2.0
// Raw memory behind the counting allocator. Blocks of 1 MiB and more come from the kernel in huge
// pages where it has them, are kept when freed, and are handed out again: fresh pages cost a fault
// each. Smaller ones are malloc's.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace quatrain::kernels {

// Thread-safe. What it keeps and what is in use together stay below the most that was ever in use
// plus an eighth and 64 MiB; beyond that the blocks freed longest ago go back first.
class BlockCache {
 public:
  struct Memory {
    void* start;
    std::size_t bytes;  // at least what was asked for
  };
  BlockCache() = default;
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;
  ~BlockCache();

  // 64-byte aligned. Throws std::bad_alloc.
  Memory acquire(std::size_t bytes);
  // `memory`: as acquire() returned it.
  void release(Memory memory) noexcept;

  struct Stats {
    std::size_t in_use = 0;   // bytes of large blocks that were handed out
    std::size_t kept = 0;     // bytes of large blocks that wait
    std::int64_t mapped = 0;  // times that the kernel was asked
    std::int64_t reused = 0;  // times that a kept block served
  };
  Stats stats() const;

 private:
  struct Kept {
    void* start;
    std::uint64_t freed_at;
  };
  bool take_kept(std::size_t bytes, Memory& memory);
  void trim(std::size_t room);
  std::size_t limit() const;

  mutable std::mutex mutex_;
  std::multimap<std::size_t, Kept> by_size_;
  std::map<std::uint64_t, std::multimap<std::size_t, Kept>::iterator> by_age_;
  std::uint64_t clock_ = 0;
  std::size_t most_in_use_ = 0;
  Stats stats_;
};

}  // namespace quatrain::kernels
