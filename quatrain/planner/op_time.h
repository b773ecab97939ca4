// SPDX-License-Identifier: Apache-2.0
// How long operations take on one accelerator: the roofline (Williams et al.,
// doi:10.1145/1498765.1498785), with rates that depend on the shape.
#pragma once
#include "quatrain/planner/geometry.h"

namespace quatrain {

constexpr double bytes_of(Bytes bytes) { return static_cast<double>(bytes.value); }
constexpr double count(std::int64_t value) { return static_cast<double>(value); }

// `count` products [m, k] x [k, n] in one kernel.
struct Product {
  double m = 1, n = 1, k = 1, count = 1;
  double flops() const { return 2 * m * n * k * count; }
};

enum class Precision : std::uint8_t { kJob, kFp8 };

// The slower of computing the tiles, in waves over the compute units, and moving the operands. An
// fp8 product casts its operands first.
// Many at once do not hide one's operands under another's tiles. `gradient`: of weights, added to
// wide sums in memory.
double product_seconds(const Job& job, const Product& product, Precision precision,
                       bool gradient = false);
// Of causal attention's FLOPs, visible pairs counted.
double attention_seconds(const Job& job, double flops);
double attention_backward_seconds(const Job& job, double flops);
// Of `kernels` that only move data.
double moving_seconds(const Job& job, double bytes, double kernels);

}  // namespace quatrain
