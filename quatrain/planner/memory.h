// SPDX-License-Identifier: Apache-2.0
// Memory by category, in forms quick enough for every plan that is searched; planner/books.h has
// what these are near to. States are cost/'s even_zero_bytes(), stashes its walk's.
#pragma once
#include <vector>

#include "quatrain/planner/estimate.h"
#include "quatrain/planner/rank_work.h"

namespace quatrain {

// Ranks that a stage's parameters, and its experts, are cut among; 1 in stage 0.
struct Shards {
  int outside = 1, experts = 1;
};
Shards shards_of(const Geometry& geometry);

// What the books have at the least: of the quick sums, states are bounds from below, and
// activations and buffers are right within a tenth. A plan that is over the limit by more cannot
// fit.
double least_memory(const MemoryParts& quick);

// And at the most, but for the rows that ZeRO's pieces end on.
double most_memory(const MemoryParts& quick);

// The cluster's, over all other categories.
void add_overhead(const ClusterSpec& cluster, MemoryParts& memory);

// `times`: of the geometry's layers.
MemoryParts memory_of(const Job& job, const MicrobatchTimes& times, const PipelineLoad& pipeline,
                      const Geometry& geometry, const RankWork& work);
MemoryParts fullest(const Job& job, const MicrobatchTimes& times, const PipelineLoad& pipeline,
                    const Geometry& geometry, const std::vector<RankWork>& works);

}  // namespace quatrain
