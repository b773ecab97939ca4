// SPDX-License-Identifier: Apache-2.0
// The bits of a tensor as one number.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace quatrain::kernels {

// XXH3 over the elements in row-major order; any strides, on the CPU.
std::uint64_t hash_bits(const at::Tensor& x, std::uint64_t seed = 0);

}  // namespace quatrain::kernels
