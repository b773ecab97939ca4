// SPDX-License-Identifier: Apache-2.0
// Raw memory behind the counting allocator. Blocks of 1 MiB and more are kept when freed, by
// rounded size, and handed out again: fresh pages cost a fault each. Thread-safe.
#pragma once
#include <cstddef>
#include <utility>

namespace quatrain::kernels {

// Returns 64-byte aligned memory and its true size, which is at least `bytes`. Throws
// std::bad_alloc.
std::pair<void*, std::size_t> acquire_block(std::size_t bytes);
// `allocated_bytes`: as returned by acquire_block.
void release_block(void* start, std::size_t allocated_bytes);

}  // namespace quatrain::kernels
