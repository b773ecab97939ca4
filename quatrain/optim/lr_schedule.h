// SPDX-License-Identifier: Apache-2.0
// Learning-rate factors as a pure function of the step. Steps count from 1; the factor reaches 1 at
// the last warm-up step and min_lr_factor at the last step of the decay.
#pragma once
#include <cstdint>
#include <string_view>

namespace quatrain {

// kConstant: 1. kLinear, kCosine (Loshchilov & Hutter, arXiv:1608.03983, without restarts): from 1
// to min_lr_factor. kWsd (warm-up, stable, decay; Hu et al., arXiv:2404.06395): 1, then linear to
// min_lr_factor over the last decay_steps of total_steps. kInverseSqrt (Vaswani et al.,
// arXiv:1706.03762): sqrt(warmup_steps / step), at least min_lr_factor.
enum class LrScheduleKind : std::uint8_t { kConstant, kLinear, kCosine, kWsd, kInverseSqrt };
struct LrSchedule {
  LrScheduleKind kind = LrScheduleKind::kCosine;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;  // wsd: length of the final decay; others: length of the decay
                                 // after the warm-up, 0 = until total_steps
  double total_steps = 0.0;
  double min_lr_factor = 0.0;
};
// Factor of the peak rate at `step` (1 for the first). Warm-up is linear from 1 / warmup_steps. Not
// a whole number where steps stand for tokens and the batch has changed.
double lr_factor(const LrSchedule& schedule, double step);

// "constant", "linear", "cosine", "wsd", "inverse_sqrt"; throws ConfigError naming them otherwise.
LrScheduleKind lr_schedule_kind(std::string_view name);

}  // namespace quatrain
