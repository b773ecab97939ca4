// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/geometry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <utility>

#include "quatrain/base/error.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {

ContextSplit context_of(const Geometry& g) {
  ContextSplit split = context_split(g.cp_style.name, g.cp, g.cp_style.heads);
  split.zigzag = g.cp_style.zigzag;
  return split;
}

ContextSplit slowest_split(const Geometry& g, std::int64_t seq) {
  ContextSplit split = context_of(g);
  if (split.zigzag && split.even(seq)) return split;  // all are alike
  const auto work = [&](int rank) {
    std::int64_t pairs = 0;
    for (const Range& queries : split.of_place(seq, rank / split.heads)) {
      pairs += causal_pairs(queries, {0, seq}, 0);
    }
    return std::pair{pairs, total(split.of_rank(seq, rank))};
  };
  auto most = work(0);
  for (int rank = 1; rank < split.degree; ++rank) {
    const auto here = work(rank);
    if (here <= most) continue;
    most = here;
    split.rank = rank;
  }
  return split;
}

Plan to_plan(const Job& job, const Geometry& geometry, const std::vector<std::int64_t>& cut) {
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
  if (geometry.ep * geometry.etp > 1) {
    const int replicas = std::gcd(geometry.dp_replicate, geometry.expert_dp());
    set(Axis::kEdpReplicate, replicas);
    set(Axis::kEdpShard, geometry.expert_dp() / replicas);
  }
  plan.seq_len = job.seq;
  plan.microbatch_size = geometry.micro_batch;
  plan.num_microbatches = geometry.microbatches;
  plan.stage_begin = first_layers(cut);
  plan.schedule = std::string(geometry.schedule);
  plan.chunks = geometry.chunks;
  plan.zero_stage = geometry.zero;
  plan.sequence_parallel = geometry.sequence_parallel;
  plan.gather_again = geometry.gather_again;
  plan.cp_style = std::string(geometry.cp_style.name);
  plan.cp_heads = geometry.cp_style.heads;
  plan.cp_zigzag = geometry.cp_style.zigzag;
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
  g.gather_again = plan.gather_again;
  g.micro_batch = plan.microbatch_size;
  g.microbatches = plan.num_microbatches;
  g.recompute = plan.recompute;
  for (const std::string_view style : kCpStyles) {
    if (style == plan.cp_style) g.cp_style = {style, plan.cp_heads, plan.cp_zigzag};
  }
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
