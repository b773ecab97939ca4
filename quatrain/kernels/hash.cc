// SPDX-License-Identifier: Apache-2.0
#include "quatrain/kernels/hash.h"

#include <xxhash.h>

namespace quatrain::kernels {

std::uint64_t hash_bits(const at::Tensor& x, std::uint64_t seed) {
  const at::Tensor rows = x.contiguous();
  return XXH3_64bits_withSeed(rows.const_data_ptr(), rows.nbytes(), seed);
}

}  // namespace quatrain::kernels
