// SPDX-License-Identifier: Apache-2.0
// A question to the planner, and one answer in the few numbers that its cost depends on.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "quatrain/planner/cluster.h"
#include "quatrain/spec/context_split.h"
#include "quatrain/spec/model_spec.h"
#include "quatrain/spec/plan.h"

namespace quatrain {

struct Job {
  ModelSpec model;
  ClusterSpec cluster;
  int gpus = 1;
  std::int64_t seq = 0;
  std::int64_t global_batch = 0;  // sequences
  Dtype dtype = Dtype::kBFloat16;
  bool fp8_products = false;  // matrices of blocks multiplied in fp8, all else in `dtype`
  double efficiency = 1.0;    // of a software stack: scales the rates of all computation
  // Rows of the rank of ep whose experts get most, over the mean; for their time alone, memory is
  // that of an even load.
  double expert_imbalance = 1.0;
};

// How ranks of cp share a sequence: the keys parallel.cp_style, cp_heads and cp_balance.
struct ContextStyle {
  std::string_view name = "ring";  // one of kCpStyles
  int heads = 1;                   // of hybrid: neighbours that exchange heads
  bool zigzag = true;
  friend bool operator==(const ContextStyle&, const ContextStyle&) = default;
};

struct Geometry {
  int dp_replicate = 1, dp_shard = 1, zero = 0;
  int tp = 1, cp = 1, pp = 1, chunks = 1, ep = 1, etp = 1;
  ContextStyle cp_style{};
  bool sequence_parallel = false;
  bool gather_again = false;  // Plan's: less memory for a second gather
  std::int64_t micro_batch = 1;
  std::int64_t microbatches = 1;  // of a step and data rank
  Recompute recompute = Recompute::kNone;
  std::string_view schedule = "1f1b";  // of schedule_names()

  int dp() const { return dp_replicate * dp_shard; }
  int world() const { return dp() * tp * cp * pp; }
  int stages() const { return pp * chunks; }
  // Experts lie on a stage's ranks by a view of their own; these hold the same ones.
  int expert_dp() const { return std::max(1, dp() * cp * tp / (ep * etp)); }
  friend bool operator==(const Geometry&, const Geometry&) = default;
};

// How the ranks of cp cut a sequence: the first of them, and the one that has most to attend to.
ContextSplit context_of(const Geometry& geometry);
ContextSplit slowest_split(const Geometry& geometry, std::int64_t seq);

// The plan that the runtime executes, and back. `cut`: blocks of each stage (balanced_layers()).
// geometry_of() throws ConfigError for schedules that are files.
Plan to_plan(const Job& job, const Geometry& geometry, const std::vector<std::int64_t>& cut);
Geometry geometry_of(const Plan& plan);

}  // namespace quatrain
