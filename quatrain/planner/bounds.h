// SPDX-License-Identifier: Apache-2.0
// When is training bound by communication? The thresholds of the scaling book (Austin et al., "How
// to scale your model", chapter on training) for blocks of two matrices, all overlap being perfect:
// communication and computation take turns at being the longer one. `intensity`: FLOP/s over the
// bytes/s of one link or axis, C / W.
#pragma once
#include <cmath>

#include "quatrain/planner/geometry.h"

namespace quatrain {

// Tokens an accelerator from which data parallelism, plain or fully sharded, is bound by computing:
// 4 D F bytes are sent for 4 B D F / X FLOPs.
constexpr double data_parallel_tokens(double intensity, double axes) { return intensity / axes; }

// Ranks up to which tensor parallelism is, of products of width `ffn`.
constexpr double tensor_parallel_ranks(double intensity, double axes, double ffn) {
  return axes * ffn / intensity;
}

// Links that each of the two uses.
struct MixedAxes {
  double data = 2, tensor = 1;
};
// Tokens an accelerator from which the mixture of both, at its best, is.
constexpr double mixed_tokens(double intensity, double ffn, MixedAxes axes) {
  return 4 * intensity * intensity / (axes.data * axes.tensor * ffn);
}
// Data ranks of that best mixture.
inline double mixed_data_ranks(double tokens, double ranks, double ffn, MixedAxes axes) {
  return std::sqrt(tokens / ffn * axes.data / axes.tensor * ranks);
}

// data_parallel_tokens() of a job's cluster, by its slowest level. Ranks of a domain share what
// crosses the network.
double tokens_for_compute_bound(const Job& job);

}  // namespace quatrain
