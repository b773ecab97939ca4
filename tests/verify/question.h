// SPDX-License-Identifier: Apache-2.0
// A recipe on a geometry against one rank, as a question to verify().
#pragma once
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

}  // namespace quatrain
