// SPDX-License-Identifier: Apache-2.0
// The counting allocator. Each block carries a header in front of its data: owner, category, size.
#include "quatrain/kernels/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "quatrain/kernels/check.h"
#include "quatrain/kernels/block_cache.h"

namespace quatrain {
namespace {

constexpr std::size_t kAlignment = 64;

thread_local MemoryOwner* owner_of_thread = nullptr;
thread_local MemoryCategory category_of_thread = MemoryCategory::kTransient;

// Stands kAlignment bytes before the data.
struct Block {
  MemoryOwner* owner;
  std::int64_t bytes;           // as asked for
  std::size_t allocated_bytes;  // header included, as block_cache gave it
  std::atomic<MemoryCategory> category;
};
static_assert(sizeof(Block) <= kAlignment);

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  if (block->owner != nullptr) block->owner->add(block->category.load(), -block->bytes);
  const std::size_t allocated = block->allocated_bytes;
  block->~Block();
  kernels::release_block(context, allocated);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &free_nothing, cpu};
    const auto [start, allocated] = kernels::acquire_block(bytes + kAlignment);
    auto* block = new (start) Block{owner_of_thread, static_cast<std::int64_t>(bytes), allocated,
                                    category_of_thread};
    if (block->owner != nullptr) block->owner->add(block->category.load(), block->bytes);
    return {static_cast<std::byte*>(start) + kAlignment, block, &free_block, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

 private:
  static void free_nothing(void*) {}
};

}  // namespace

std::string_view name(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::kParams: return "params";
    case MemoryCategory::kGrads: return "grads";
    case MemoryCategory::kOptimizer: return "optimizer";
    case MemoryCategory::kActivations: return "activations";
    case MemoryCategory::kBuffers: return "buffers";
    case MemoryCategory::kTransient: return "transient";
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

void MemoryOwner::reset_peak() {
  peak_total_.store(total_.load());
  for (std::size_t c = 0; c < live_.size(); ++c) at_peak_[c].store(live_[c].load());
}

void MemoryOwner::add(MemoryCategory category, std::int64_t bytes) {
  live_[static_cast<std::size_t>(category)].fetch_add(bytes, std::memory_order_relaxed);
  const std::int64_t total = total_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  std::int64_t peak = peak_total_.load(std::memory_order_relaxed);
  if (total <= peak) return;
  while (total > peak && !peak_total_.compare_exchange_weak(peak, total)) {
  }
  for (std::size_t c = 0; c < live_.size(); ++c) {
    at_peak_[c].store(live_[c].load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
}

void MemoryOwner::move(MemoryCategory from, MemoryCategory to, std::int64_t bytes) {
  live_[static_cast<std::size_t>(from)].fetch_sub(bytes, std::memory_order_relaxed);
  live_[static_cast<std::size_t>(to)].fetch_add(bytes, std::memory_order_relaxed);
  if (total_.load() != peak_total_.load()) return;
  for (std::size_t c = 0; c < live_.size(); ++c) at_peak_[c].store(live_[c].load());
}

void install_counting_allocator() {
  static CountingAllocator allocator;
  static const bool installed = [] {
    c10::SetCPUAllocator(&allocator, 255);
    return true;
  }();
  CHECK(installed);
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
  auto* block = tensor.storage().data_ptr().cast_context<Block>(&free_block);
  if (block == nullptr || block->owner == nullptr) return;
  const MemoryCategory before = block->category.exchange(category);
  if (before != category) block->owner->move(before, category, block->bytes);
}

}  // namespace quatrain
