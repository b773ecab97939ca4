// SPDX-License-Identifier: Apache-2.0
// Tables for rope_ (pointwise.h): cosines and sines of position x frequency, computed in float64.
// Frequencies: Su et al., arXiv:2104.09864, section 3.2.2, and the published ways to stretch them.
// Shapes: P positions, d head dim.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace quatrain::kernels {

enum class RopeStretch : std::uint8_t {
  kNone,
  kLinear,  // all frequencies / factor (arXiv:2306.15595)
  kLlama3,  // long waves / factor, short ones kept, a ramp between (Llama 3.1)
  kYarn     // a ramp over dimensions, and cos and sin times an attention factor (arXiv:2309.00071)
};

struct RopeTableOptions {
  std::int64_t head_dim = 0;  // even
  double theta = 10000.0;
  RopeStretch stretch = RopeStretch::kNone;
  double factor = 1.0;
  std::int64_t original_positions = 8192;  // context length before stretching: kLlama3, kYarn
  double low_freq_factor = 1.0;            // kLlama3
  double high_freq_factor = 4.0;           // kLlama3
  double beta_fast = 32.0;                 // kYarn
  double beta_slow = 1.0;                  // kYarn
  double attention_factor = 0.0;           // kYarn; 0: 0.1 ln(factor) + 1
};

// [d / 2] radians a position.
std::vector<double> rope_frequencies(const RopeTableOptions& options);

struct RopeTable {
  at::Tensor cos_Pd, sin_Pd;  // [P, d / 2]
};
// dtype: wide(dtype) of the tensors to rotate.
RopeTable rope_table(const RopeTableOptions& options, std::int64_t positions, at::ScalarType dtype);

}  // namespace quatrain::kernels
