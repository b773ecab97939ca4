// SPDX-License-Identifier: Apache-2.0
// A recipe on a geometry against one rank, as a question to verify().
#pragma once
#include "quatrain/verify/inject.h"
#include "quatrain/verify/verify.h"
#include "tests/zero/geometry_run.h"

namespace quatrain {

// One rank with the geometry's own micro-batches.
inline Geometry opponent(const Geometry& geometry) {
  return {.accumulation = geometry.accumulation * geometry.data_ranks()};
}

inline std::optional<Geometry> without(Geometry geometry, Axis axis) {
  const auto data_ranks = geometry.data_ranks();
  if (axis == Axis::kDpReplicate) geometry.replicas = 1;
  if (axis == Axis::kDpShard) geometry.shards = 1;
  if (axis == Axis::kTp) geometry.tensor = 1;
  if (axis == Axis::kCp) geometry.context = geometry.context_heads = 1;
  if (axis == Axis::kPp) {
    geometry.pipeline = geometry.chunks = 1;
    geometry.schedule = "1f1b";
    geometry.layers = {};
  }
  geometry.accumulation *= data_ranks / geometry.data_ranks();
  return geometry;
}

inline Question question(const Recipe& recipe, const Geometry& geometry) {
  Question q;
  q.subject = side_of(recipe, geometry);
  Recipe other = recipe;
  other.recompute = Recompute::kNone;
  q.reference = side_of(other, opponent(geometry));
  q.steps = recipe.steps;
  return q;
}

// The same with a fault planted in the geometry, and in those without one of its axes.
inline VerifyReport report_of(const Recipe& recipe, const Geometry& geometry,
                              const Injection& injection) {
  Question q = question(recipe, geometry);
  q.subject.hooks = injection.hooks;
  q.without = [=](Axis axis) {
    std::optional<Side> side;
    if (const auto other = without(geometry, axis)) {
      side = side_of(recipe, *other);
      side->hooks = injection.hooks;
    }
    return side;
  };
  return verify(q);
}

}  // namespace quatrain
