// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/geometry.h"

#include <fmt/format.h>

#include "quatrain/base/error.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {

std::vector<std::int64_t> planned_layers(std::int64_t layers, int stages) {
  const std::int64_t least = layers / stages, more = layers % stages;
  // Stages in the middle get the remainder: the ends first go without.
  const std::int64_t without = stages - more, first = without / 2;
  std::vector<std::int64_t> cut(static_cast<std::size_t>(stages), least);
  for (std::int64_t i = 0; i < more; ++i) ++cut[static_cast<std::size_t>(first + i)];
  return cut;
}

Plan to_plan(const Job& job, const Geometry& geometry) {
  Plan plan;
  const auto set = [&](Axis axis, int degree) {
    plan.degrees[static_cast<std::size_t>(axis)] = degree;
  };
  set(Axis::kPp, geometry.pp);
  set(Axis::kDpReplicate, geometry.dp_replicate);
  set(Axis::kDpShard, geometry.dp_shard);
  set(Axis::kCp, geometry.cp);
  set(Axis::kTp, geometry.tp);
  set(Axis::kEp, geometry.ep);
  set(Axis::kEtp, geometry.etp);
  if (geometry.ep * geometry.etp > 1) set(Axis::kEdpShard, geometry.expert_dp());
  plan.seq_len = job.seq;
  plan.microbatch_size = geometry.micro_batch;
  plan.num_microbatches = geometry.microbatches;
  plan.stage_begin = first_layers(planned_layers(job.model.layers, geometry.stages()));
  plan.schedule = std::string(geometry.schedule);
  plan.chunks = geometry.chunks;
  plan.zero_stage = geometry.zero;
  plan.sequence_parallel = geometry.sequence_parallel;
  plan.recompute = geometry.recompute;
  plan.dtype = job.dtype;
  return plan;
}

Geometry geometry_of(const Plan& plan) {
  const auto degree = [&](Axis axis) { return plan.degrees[static_cast<std::size_t>(axis)]; };
  Geometry g;
  g.dp_replicate = degree(Axis::kDpReplicate);
  g.dp_shard = degree(Axis::kDpShard);
  g.zero = plan.zero_stage;
  g.tp = degree(Axis::kTp);
  g.cp = degree(Axis::kCp);
  g.pp = degree(Axis::kPp);
  g.chunks = plan.chunks;
  g.ep = degree(Axis::kEp);
  g.etp = degree(Axis::kEtp);
  g.sequence_parallel = plan.sequence_parallel;
  g.micro_batch = plan.microbatch_size;
  g.microbatches = plan.num_microbatches;
  g.recompute = plan.recompute;
  for (const std::string_view name : schedule_names()) {
    if (name == plan.schedule) {
      g.schedule = name;
      return g;
    }
  }
  throw ConfigError(fmt::format("parallel.schedule = \"{}\" is none of the planner's: {}",
                                plan.schedule, fmt::join(schedule_names(), " ")));
}

}  // namespace quatrain
