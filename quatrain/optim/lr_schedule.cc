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
double progress(double step, double begin, double end) {
  if (step >= end) return 1.0;
  if (step <= begin) return 0.0;
  return (step - begin) / (end - begin);
}

double between(double low, double weight) { return low + (1.0 - low) * weight; }

}  // namespace

double lr_factor(const LrSchedule& schedule, double step) {
  const auto warmup = static_cast<double>(schedule.warmup_steps);
  if (step < warmup) return step / warmup;
  const auto decay = static_cast<double>(schedule.decay_steps);
  const double end = schedule.decay_steps > 0 ? warmup + decay : schedule.total_steps;
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
      const double begin = std::max(warmup, schedule.total_steps - decay);
      if (schedule.decay_steps == 0) return 1.0;
      return between(low, 1.0 - progress(step, begin, schedule.total_steps));
    }
    case LrScheduleKind::kInverseSqrt:
      return std::max(low, std::sqrt(std::max(warmup, 1.0) / std::max(step, 1.0)));
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
