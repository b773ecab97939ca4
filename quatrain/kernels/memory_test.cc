// SPDX-License-Identifier: Apache-2.0
// The books against counts by hand: categories, views, other threads, retagging, peaks; and the
// cache of large blocks.
#include "quatrain/kernels/memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "quatrain/kernels/block_cache.h"

namespace quatrain {
namespace {

class Memory : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { install_counting_allocator(); }
};

TEST_F(Memory, equals_a_hand_count) {
  MemoryOwner owner;
  const ScopedMemoryOwner scope(&owner);
  EXPECT_EQ(current_memory_owner(), &owner);
  {
    const ScopedMemoryCategory params(MemoryCategory::kParams);
    const at::Tensor a = at::empty({7, 11});            // 308
    const at::Tensor b = at::zeros({13}, at::kDouble);  // 104
    EXPECT_EQ(owner.live()[MemoryCategory::kParams], 308 + 104);
    {
      const ScopedMemoryCategory grads(MemoryCategory::kGrads);
      const at::Tensor c = at::empty({3}, at::kBFloat16);       // 6
      const at::Tensor big = at::empty({1000003}, at::kFloat);  // 4,000,012: a cached size
      EXPECT_EQ(owner.live()[MemoryCategory::kGrads], 6 + 4000012);
      EXPECT_EQ(owner.live().total(), 412 + 6 + 4000012);
    }
    EXPECT_EQ(owner.live()[MemoryCategory::kGrads], 0);
    const at::Tensor sum = a.add(1.0);
    EXPECT_EQ(owner.live()[MemoryCategory::kParams], 2 * 308 + 104);
  }
  EXPECT_EQ(owner.live().total(), 0);
  EXPECT_EQ(owner.peak().total(), 412 + 6 + 4000012);
}

TEST_F(Memory, views_cost_nothing_and_keep_the_block) {
  MemoryOwner owner;
  const ScopedMemoryOwner scope(&owner);
  at::Tensor view;
  {
    const at::Tensor whole = at::empty({10, 10});
    view = whole.narrow(0, 2, 1).t();
    EXPECT_EQ(owner.live().total(), 400);
  }
  EXPECT_EQ(owner.live().total(), 400);
  view = at::Tensor();
  EXPECT_EQ(owner.live().total(), 0);
}

TEST_F(Memory, counts_for_the_owner_whichever_thread_frees) {
  MemoryOwner first;
  MemoryOwner second;
  at::Tensor made_by_first;
  std::thread maker([&] {
    const ScopedMemoryOwner scope(&first);
    const ScopedMemoryCategory category(MemoryCategory::kBuffers);
    made_by_first = at::empty({500000});
  });
  maker.join();
  EXPECT_EQ(first.live()[MemoryCategory::kBuffers], 2000000);
  {
    const ScopedMemoryOwner scope(&second);
    const at::Tensor own = at::empty({5});
    made_by_first = at::Tensor();
    EXPECT_EQ(second.live().total(), 20);
  }
  EXPECT_EQ(first.live().total(), 0);
  EXPECT_EQ(second.live().total(), 0);
}

TEST_F(Memory, many_threads_end_at_zero) {
  MemoryOwner owner;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&owner, i] {
      const ScopedMemoryOwner scope(&owner);
      for (int round = 0; round < 200; ++round) {
        const at::Tensor small = at::empty({17 + i});
        const at::Tensor large = at::empty({300000 + 1000 * (round % 7)});
        retag(large, MemoryCategory::kActivations);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(owner.live().total(), 0);
  EXPECT_EQ(owner.live()[MemoryCategory::kActivations], 0);
  EXPECT_GE(owner.peak().total(), 300000 * 4);
}

TEST_F(Memory, retag_moves_the_whole_block) {
  MemoryOwner owner;
  const ScopedMemoryOwner scope(&owner);
  at::Tensor x = at::empty({100});
  EXPECT_EQ(owner.live()[MemoryCategory::kTransient], 400);
  retag(x.narrow(0, 3, 2), MemoryCategory::kActivations);
  EXPECT_EQ(owner.live()[MemoryCategory::kTransient], 0);
  EXPECT_EQ(owner.live()[MemoryCategory::kActivations], 400);
  retag(x, MemoryCategory::kActivations);
  retag(at::Tensor(), MemoryCategory::kActivations);
  EXPECT_EQ(owner.live()[MemoryCategory::kActivations], 400);
  x = at::Tensor();
  EXPECT_EQ(owner.live().total(), 0);
}

TEST_F(Memory, peak_is_by_category_at_the_moment_of_the_total) {
  MemoryOwner owner;
  const ScopedMemoryOwner scope(&owner);
  at::Tensor params = at::empty({100});
  retag(params, MemoryCategory::kParams);
  { const at::Tensor lone = at::empty({50}); }
  {
    const ScopedMemoryCategory c(MemoryCategory::kActivations);
    const at::Tensor act = at::empty({80});
  }
  { const at::Tensor later = at::empty({79}); }
  EXPECT_EQ(owner.peak().total(), 400 + 320);
  EXPECT_EQ(owner.peak()[MemoryCategory::kActivations], 320);
  EXPECT_EQ(owner.peak()[MemoryCategory::kTransient], 0);
  EXPECT_EQ(owner.peak()[MemoryCategory::kParams], 400);
  owner.reset_peak();
  EXPECT_EQ(owner.peak().total(), 400);
  { const at::Tensor later = at::empty({1}); }
  EXPECT_EQ(owner.peak().total(), 404);
}

TEST_F(Memory, without_an_owner_nothing_is_counted) {
  MemoryOwner owner;
  at::Tensor x = at::empty({100});
  const ScopedMemoryOwner scope(&owner);
  retag(x, MemoryCategory::kParams);
  x = at::Tensor();
  const at::Tensor none = at::empty({0});
  EXPECT_EQ(owner.live().total(), 0);
  {
    const ScopedMemoryOwner nobody(nullptr);
    const at::Tensor y = at::empty({100});
    EXPECT_EQ(owner.live().total(), 0);
  }
  EXPECT_EQ(current_memory_owner(), &owner);
}

// Operators that ask the allocator for scratch memory directly.
TEST_F(Memory, raw_allocation) {
  MemoryOwner owner;
  const ScopedMemoryOwner scope(&owner);
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  void* const scratch = allocator->raw_allocate(1000);
  EXPECT_EQ(owner.live().total(), 1000);
  allocator->raw_deallocate(scratch);
  EXPECT_EQ(owner.live().total(), 0);
}

TEST_F(Memory, categories_have_names) {
  EXPECT_EQ(name(MemoryCategory::kParams), "params");
  EXPECT_EQ(name(MemoryCategory::kTransient), "transient");
}

#if !defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(BlockCache, hands_out_freed_blocks_again) {
  kernels::BlockCache cache;
  const auto a = cache.acquire(3 * kMiB);
  const auto b = cache.acquire(3 * kMiB);
  EXPECT_NE(a.start, b.start);
  EXPECT_EQ(cache.stats().in_use, 6 * kMiB);
  cache.release(a);
  cache.release(b);
  EXPECT_EQ(cache.stats().kept, 6 * kMiB);
  const auto c = cache.acquire(3 * kMiB - 100);
  EXPECT_EQ(c.start, b.start) << "of equal blocks the one freed last";
  const auto d = cache.acquire(2 * kMiB);
  EXPECT_NE(d.start, a.start) << "a block half as large again is too large";
  EXPECT_EQ(cache.stats().mapped, 3);
  EXPECT_EQ(cache.stats().reused, 1);
  cache.release(c);
  cache.release(d);
}

TEST(BlockCache, keeps_no_more_than_was_ever_in_use_and_a_margin) {
  kernels::BlockCache cache;
  for (std::size_t size = 20; size < 200; size += 7) cache.release(cache.acquire(size * kMiB));
  const auto stats = cache.stats();
  EXPECT_EQ(stats.in_use, 0U);
  EXPECT_LE(stats.kept, (200 + 200 / 8 + 64) * kMiB);
  EXPECT_GT(stats.kept, 0U);
}

TEST(BlockCache, small_blocks_are_not_kept) {
  kernels::BlockCache cache;
  const auto a = cache.acquire(1000);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.start) % 64, 0U);
  cache.release(a);
  EXPECT_EQ(cache.stats().kept, 0U);
  EXPECT_EQ(cache.stats().mapped, 0);
}
#endif

}  // namespace
}  // namespace quatrain
