// SPDX-License-Identifier: Apache-2.0
// From a model's rotary settings to kernels/rope_table.h's.
#include "quatrain/nn/rotary.h"

#include <cmath>

#include "quatrain/kernels/rope_table.h"
#include "quatrain/nn/check.h"

namespace quatrain {
namespace {

kernels::RopeStretch stretch(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::kNone:
      return kernels::RopeStretch::kNone;
    case RopeScaling::kLinear:
      return kernels::RopeStretch::kLinear;
    case RopeScaling::kLlama3:
      return kernels::RopeStretch::kLlama3;
    case RopeScaling::kYarn:
      return kernels::RopeStretch::kYarn;
  }
  CHECK(false, "rope scaling {}", static_cast<int>(scaling));
  return kernels::RopeStretch::kNone;
}

// YaRN's factor on cosines and sines (arXiv:2309.00071, equation 22); DeepSeek divides one by
// another. 0: the kernel's default.
double attention_factor(const Rope& rope) {
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.mscale == 0.0 || rope.mscale_all_dim == 0.0 || rope.factor <= 1.0) return 0.0;
  const double log = 0.1 * std::log(rope.factor);
  return (rope.mscale * log + 1.0) / (rope.mscale_all_dim * log + 1.0);
}

}  // namespace

RotaryTables make_rotary(const ModelSpec& spec, std::int64_t positions, at::ScalarType dtype,
                         at::Device device) {
  if (spec.position != PositionKind::kRope) return {};
  const Rope& rope = spec.rope;
  const kernels::RopeTableOptions options{
      .head_dim = spec.latent ? spec.latent->qk_rope_head_dim : spec.head_dim,
      .theta = rope.theta,
      .stretch = stretch(rope.scaling),
      .factor = rope.factor,
      .original_positions =
          rope.original_max_positions > 0 ? rope.original_max_positions : spec.max_positions,
      .low_freq_factor = rope.low_freq_factor,
      .high_freq_factor = rope.high_freq_factor,
      .beta_fast = rope.beta_fast,
      .beta_slow = rope.beta_slow,
      .attention_factor = attention_factor(rope)};
  const kernels::RopeTable table = kernels::rope_table(options, positions, dtype);
  return {table.cos_Pd.to(device), table.sin_Pd.to(device)};
}

}  // namespace quatrain
