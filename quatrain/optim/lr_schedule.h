// SPDX-License-Identifier: Apache-2.0
// Learning-rate factors as a pure function of the step.
#pragma once
#include <cstdint>

namespace quatrain {

enum class LrScheduleKind : std::uint8_t { kConstant, kLinear, kCosine, kWsd, kInverseSqrt };
struct LrSchedule {
  LrScheduleKind kind = LrScheduleKind::kCosine;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;   // wsd: length of the final decay; others: 0 = until total_steps
  std::int64_t total_steps = 0;
  double min_lr_factor = 0.0;
};
// Factor of the peak rate at `step` (1 for the first). Warm-up is linear from 1 / warmup_steps.
double lr_factor(const LrSchedule& schedule, std::int64_t step);

}  // namespace quatrain
