// SPDX-License-Identifier: Apache-2.0
// Memory by category. States are cost/'s even_zero_bytes(), stashes its walk's.
#pragma once
#include "quatrain/planner/estimate.h"

namespace quatrain {

// Parameters that one rank of tp, ep and etp holds of its stages before ZeRO cuts them.
struct HeldParameters {
  double outside = 0, experts = 0;  // outside experts, in them
  double largest_unit = 0;          // of the pieces that ZeRO gathers and reduces
};
HeldParameters held_parameters(const Job& job, const MicrobatchTimes& times,
                               const Pipeline& pipeline, int rank);

// Ranks that a stage's parameters, and its experts, are cut among; 1 in stage 0.
struct Shards {
  int outside = 1, experts = 1;
};
Shards shards_of(const Geometry& geometry);

// Of pipeline rank `rank`.
MemoryParts memory_of(const Job& job, const MicrobatchTimes& times, const Pipeline& pipeline,
                      const Geometry& geometry, int rank);
MemoryParts fullest(const Job& job, const MicrobatchTimes& times, const Pipeline& pipeline,
                    const Geometry& geometry);

}  // namespace quatrain
