// SPDX-License-Identifier: Apache-2.0
#include "quatrain/optim/lr_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

#include "quatrain/base/error.h"
#include "quatrain/base/text.h"

namespace quatrain {
namespace {

constexpr std::array<std::pair<std::string_view, LrScheduleKind>, 5> kNames{{
    {"constant", LrScheduleKind::kConstant},
    {"linear", LrScheduleKind::kLinear},
    {"cosine", LrScheduleKind::kCosine},
    {"wsd", LrScheduleKind::kWsd},
    {"inverse_sqrt", LrScheduleKind::kInverseSqrt},
}};

// Share of [begin, end] that lies behind `step`; 1 when the range is empty.
double progress(std::int64_t step, std::int64_t begin, std::int64_t end) {
  if (step >= end) return 1.0;
  if (step <= begin) return 0.0;
  return static_cast<double>(step - begin) / static_cast<double>(end - begin);
}

double between(double low, double weight) { return low + (1.0 - low) * weight; }

}  // namespace

double lr_factor(const LrSchedule& schedule, std::int64_t step) {
  const std::int64_t warmup = schedule.warmup_steps;
  if (step < warmup) return static_cast<double>(step) / static_cast<double>(warmup);
  const std::int64_t end =
      schedule.decay_steps > 0 ? warmup + schedule.decay_steps : schedule.total_steps;
  const double low = schedule.min_lr_factor;
  switch (schedule.kind) {
    case LrScheduleKind::kConstant:
      return 1.0;
    case LrScheduleKind::kLinear:
      return between(low, 1.0 - progress(step, warmup, end));
    case LrScheduleKind::kCosine: {
      const double angle = std::numbers::pi * progress(step, warmup, end);
      return between(low, 0.5 * (1.0 + std::cos(angle)));
    }
    case LrScheduleKind::kWsd: {
      const std::int64_t begin = std::max(warmup, schedule.total_steps - schedule.decay_steps);
      if (schedule.decay_steps == 0) return 1.0;
      return between(low, 1.0 - progress(step, begin, schedule.total_steps));
    }
    case LrScheduleKind::kInverseSqrt: {
      const auto from = static_cast<double>(std::max<std::int64_t>(warmup, 1));
      return std::max(low, std::sqrt(from / static_cast<double>(std::max<std::int64_t>(step, 1))));
    }
  }
  return 1.0;
}

LrScheduleKind lr_schedule_kind(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& [known, kind] : kNames) {
    if (known == name) return kind;
    names.emplace_back(known);
  }
  throw ConfigError(fmt::format("there is no learning-rate schedule \"{}\"; there are: {}", name,
                                join(names, " ")));
}

}  // namespace quatrain
