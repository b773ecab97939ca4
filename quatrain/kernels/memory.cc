// SPDX-License-Identifier: Apache-2.0
// The counting allocator. Each block carries a header in front of its data: owner, category, size.
#include "quatrain/kernels/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <new>

#include "quatrain/kernels/block_cache.h"
#include "quatrain/kernels/check.h"

namespace quatrain {
namespace {

constexpr std::size_t kAlignment = 64;

thread_local MemoryOwner* owner_of_thread = nullptr;
thread_local MemoryCategory category_of_thread = MemoryCategory::kTransient;

// Stands kAlignment bytes before the data. The DataPtr's context is the data itself: torch's
// raw_allocate() insists on that.
struct Block {
  MemoryOwner* owner;
  std::int64_t bytes;  // as asked for
  kernels::BlockCache* cache;
  std::size_t allocated_bytes;  // header included
  std::atomic<MemoryCategory> category;
};
static_assert(sizeof(Block) <= kAlignment);

Block* block_of(void* start) {
  return std::launder(reinterpret_cast<Block*>(static_cast<std::byte*>(start) - kAlignment));
}

void free_block(void* start) {
  if (start == nullptr) return;
  Block* const block = block_of(start);
  if (block->owner != nullptr) block->owner->add(block->category.load(), -block->bytes);
  kernels::BlockCache& cache = *block->cache;
  const std::size_t allocated = block->allocated_bytes;
  block->~Block();
  cache.release({block, allocated});
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &free_block, cpu};
    const auto [start, allocated] = cache_.acquire(bytes + kAlignment);
    auto* block = new (start) Block{owner_of_thread, static_cast<std::int64_t>(bytes), &cache_,
                                    allocated, category_of_thread};
    if (block->owner != nullptr) block->owner->add(block->category.load(), block->bytes);
    void* const first = static_cast<std::byte*>(start) + kAlignment;
    return {first, first, &free_block, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

 private:
  kernels::BlockCache cache_;
};

// Whether `value` is a new highest.
bool raise(std::atomic<std::int64_t>& highest, std::int64_t value) {
  std::int64_t seen = highest.load(std::memory_order_relaxed);
  while (value > seen) {
    if (highest.compare_exchange_weak(seen, value)) return true;
  }
  return false;
}

}  // namespace

std::string_view name(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::kParams:
      return "params";
    case MemoryCategory::kGrads:
      return "grads";
    case MemoryCategory::kOptimizer:
      return "optimizer";
    case MemoryCategory::kActivations:
      return "activations";
    case MemoryCategory::kBuffers:
      return "buffers";
    case MemoryCategory::kTransient:
      return "transient";
  }
  CHECK(false, "memory category {}", static_cast<int>(category));
  return "";
}

std::int64_t MemoryUse::total() const {
  std::int64_t sum = 0;
  for (const std::int64_t b : bytes) sum += b;
  return sum;
}

MemoryUse MemoryOwner::live() const {
  MemoryUse use;
  for (std::size_t c = 0; c < live_.size(); ++c) use.bytes[c] = live_[c].load();
  return use;
}

MemoryUse MemoryOwner::peak() const {
  MemoryUse use;
  for (std::size_t c = 0; c < at_peak_.size(); ++c) use.bytes[c] = at_peak_[c].load();
  return use;
}

MemoryUse MemoryOwner::highest() const {
  MemoryUse use;
  for (std::size_t c = 0; c < highest_.size(); ++c) use.bytes[c] = highest_[c].load();
  return use;
}

void MemoryOwner::reset_peak() {
  peak_total_.store(total_.load());
  for (std::size_t c = 0; c < live_.size(); ++c) {
    at_peak_[c].store(live_[c].load());
    highest_[c].store(live_[c].load());
  }
}

void MemoryOwner::add(MemoryCategory category, std::int64_t bytes) {
  const auto c = static_cast<std::size_t>(category);
  raise(highest_[c], live_[c].fetch_add(bytes, std::memory_order_relaxed) + bytes);
  const std::int64_t total = total_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (!raise(peak_total_, total)) return;
  for (std::size_t i = 0; i < live_.size(); ++i) {
    at_peak_[i].store(live_[i].load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
}

void MemoryOwner::move(MemoryCategory from, MemoryCategory to, std::int64_t bytes) {
  live_[static_cast<std::size_t>(from)].fetch_sub(bytes, std::memory_order_relaxed);
  const auto t = static_cast<std::size_t>(to);
  raise(highest_[t], live_[t].fetch_add(bytes, std::memory_order_relaxed) + bytes);
  if (total_.load() != peak_total_.load()) return;
  for (std::size_t c = 0; c < live_.size(); ++c) at_peak_[c].store(live_[c].load());
}

void install_counting_allocator() {
  // Never destroyed: tensors may outlive every static object.
  static CountingAllocator* const allocator = [] {
    auto* made = new CountingAllocator;
    c10::SetCPUAllocator(made, 255);
    return made;
  }();
  CHECK(allocator != nullptr);
}

ScopedMemoryOwner::ScopedMemoryOwner(MemoryOwner* owner) : previous_(owner_of_thread) {
  owner_of_thread = owner;
}
ScopedMemoryOwner::~ScopedMemoryOwner() { owner_of_thread = previous_; }

ScopedMemoryCategory::ScopedMemoryCategory(MemoryCategory category)
    : previous_(category_of_thread) {
  category_of_thread = category;
}
ScopedMemoryCategory::~ScopedMemoryCategory() { category_of_thread = previous_; }

MemoryOwner* current_memory_owner() { return owner_of_thread; }

void retag(const at::Tensor& tensor, MemoryCategory category) {
  if (!tensor.has_storage()) return;
  void* const start = tensor.storage().data_ptr().cast_context<void>(&free_block);
  if (start == nullptr || block_of(start)->owner == nullptr) return;
  Block* const block = block_of(start);
  const MemoryCategory before = block->category.exchange(category);
  if (before != category) block->owner->move(before, category, block->bytes);
}

}  // namespace quatrain
