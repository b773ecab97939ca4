// SPDX-License-Identifier: Apache-2.0
// See block_cache.h. Sizes are rounded to 64 KiB (2 MiB from 32 MiB on), so that the same step asks
// for the same sizes again; a kept block serves requests down to eight ninths of its size.
#include "quatrain/kernels/block_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <new>

namespace quatrain::kernels {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kLarge = std::size_t{1} << 20;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kSlack = std::size_t{64} << 20;
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kKeep = false;  // the sanitizer must see every free
#else
constexpr bool kKeep = true;
#endif

std::size_t rounded(std::size_t bytes) {
  const std::size_t unit = bytes >= 16 * kHugePage ? kHugePage : kLarge / 16;
  return (bytes + unit - 1) / unit * unit;
}

void* map_fresh(std::size_t bytes) {
  const std::size_t spare = bytes >= kHugePage ? kHugePage : 0;
  void* mapped =
      mmap(nullptr, bytes + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  if (spare == 0) return mapped;
  auto* begin = static_cast<std::byte*>(mapped);
  const auto address = reinterpret_cast<std::uintptr_t>(mapped);
  const std::size_t front = (kHugePage - address % kHugePage) % kHugePage;
  if (front > 0) munmap(begin, front);
  if (spare > front) munmap(begin + front + bytes, spare - front);
  madvise(begin + front, bytes, MADV_HUGEPAGE);
  return begin + front;
}

}  // namespace

BlockCache::~BlockCache() {
  for (const auto& [bytes, kept] : by_size_) munmap(kept.start, bytes);
}

std::size_t BlockCache::limit() const { return most_in_use_ + most_in_use_ / 8 + kSlack; }

BlockCache::Stats BlockCache::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

// The smallest kept block that fits, of equal ones the one freed last.
bool BlockCache::take_kept(std::size_t bytes, Memory& memory) {
  const auto fit = by_size_.lower_bound(bytes);
  if (fit == by_size_.end() || fit->first > bytes + bytes / 8) return false;
  const auto last = std::prev(by_size_.upper_bound(fit->first));
  memory = {last->second.start, last->first};
  by_age_.erase(last->second.freed_at);
  by_size_.erase(last);
  stats_.kept -= memory.bytes;
  ++stats_.reused;
  return true;
}

// Gives the oldest kept blocks back until `room` more bytes are within the limit.
void BlockCache::trim(std::size_t room) {
  while (!by_age_.empty() && stats_.in_use + stats_.kept + room > limit()) {
    const auto oldest = by_age_.begin()->second;
    munmap(oldest->second.start, oldest->first);
    stats_.kept -= oldest->first;
    by_size_.erase(oldest);
    by_age_.erase(by_age_.begin());
  }
}

BlockCache::Memory BlockCache::acquire(std::size_t bytes) {
  if (!kKeep || bytes < kLarge) {
    void* start = nullptr;
    if (posix_memalign(&start, kAlignment, bytes) != 0) throw std::bad_alloc();
    return {start, bytes};
  }
  const std::size_t wanted = rounded(bytes);
  Memory memory{nullptr, wanted};
  const std::lock_guard lock(mutex_);
  if (!take_kept(wanted, memory)) {
    most_in_use_ = std::max(most_in_use_, stats_.in_use + wanted);
    trim(wanted);
    memory.start = map_fresh(wanted);
    ++stats_.mapped;
  }
  stats_.in_use += memory.bytes;
  most_in_use_ = std::max(most_in_use_, stats_.in_use);
  return memory;
}

void BlockCache::release(Memory memory) noexcept {
  if (!kKeep || memory.bytes < kLarge) {
    std::free(memory.start);
    return;
  }
  const std::lock_guard lock(mutex_);
  stats_.in_use -= memory.bytes;
  stats_.kept += memory.bytes;
  const auto place = by_size_.insert({memory.bytes, Kept{memory.start, clock_}});
  by_age_.emplace(clock_++, place);
  trim(0);
}

}  // namespace quatrain::kernels
