// SPDX-License-Identifier: Apache-2.0
// Memory as the runtime counts it: cost/'s books of each pipeline rank, read off its own lowered
// row. Exact where planner/memory.h has quick forms, and too slow for each of many thousand plans.
#pragma once
#include <cstdint>
#include <span>

#include "quatrain/planner/estimate.h"

namespace quatrain {

// Whether the books know the geometry: none are kept of other software, of schedules that hold the
// model twice, and of experts that get rows from ranks of cp with unlike numbers of tokens.
bool has_books(const Job& job, const Geometry& geometry);

// Exact but for the work space of one layer, in `buffers`, and the cluster's overhead. Of the ranks
// at the first place along tp, ep and etp: no other holds more; along dp_shard and cp, that share
// one copy, the largest pieces, and along cp the most activations.
// `times`, `pipeline`: of the geometry; `cut`: blocks of each stage. Needs has_books().
MemoryParts booked_memory(const Job& job, const MicrobatchTimes& times,
                          const PipelineLoad& pipeline, const Geometry& geometry,
                          std::span<const std::int64_t> cut, int rank);
// Of the pipeline rank that holds most.
MemoryParts booked_memory(const Job& job, const MicrobatchTimes& times,
                          const PipelineLoad& pipeline, const Geometry& geometry,
                          std::span<const std::int64_t> cut);

}  // namespace quatrain
