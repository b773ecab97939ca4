// SPDX-License-Identifier: Apache-2.0
// See block_cache.h.
#include "quatrain/kernels/block_cache.h"

#include <cstdlib>
#include <new>

namespace quatrain::kernels {

std::pair<void*, std::size_t> acquire_block(std::size_t bytes) {
  void* start = nullptr;
  if (posix_memalign(&start, 64, bytes) != 0) throw std::bad_alloc();
  return {start, bytes};
}

void release_block(void* start, std::size_t) { std::free(start); }

}  // namespace quatrain::kernels
