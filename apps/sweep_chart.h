// SPDX-License-Identifier: Apache-2.0
// A sweep of the planner as a picture: what each value's best step consists of.
#pragma once
#include <span>
#include <string>

#include "quatrain/planner/search.h"

namespace quatrain::apps {

struct SweepPoint {
  std::string value;  // of the axis
  RankedPlan plan;
};
// An .svg file: a row a value, its seconds by part.
std::string sweep_svg(const Job& job, const std::string& axis, std::span<const SweepPoint> points);

}  // namespace quatrain::apps
