// SPDX-License-Identifier: Apache-2.0
// One token out of a row of logits: temperature, then top-k, then top-p (nucleus sampling, Holtzman
// et al., arXiv:1904.09751). The answer is a function of the arguments alone.
#pragma once
#include <cstdint>
#include <span>

namespace quatrain {

struct SamplingOptions {
  double temperature = 1.0;  // 0: the likeliest token, whatever the rest says
  std::int64_t top_k = 0;    // of the k likeliest tokens; 0: of all
  double top_p = 1.0;        // of the fewest likeliest tokens that hold this probability; 1: of all
};
// Throws ConfigError naming every option out of range.
void check(const SamplingOptions& options);

// Index of the chosen logit; equal logits rank by index. `uniform`: a draw from [0, 1).
// Throws DataError when a logit is not a number or infinite upwards.
std::int64_t sample(std::span<const double> logits, const SamplingOptions& options, double uniform);

}  // namespace quatrain
