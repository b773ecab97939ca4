// SPDX-License-Identifier: Apache-2.0
// A geometry whose ranks count what they send and hold, and what cost/ says of it.
#pragma once
#include <functional>
#include <string>

#include "quatrain/comm/counting.h"
#include "quatrain/kernels/memory.h"
#include "tests/zero/geometry_run.h"

namespace quatrain {

// Calls check(job, counts, memory) on every rank; `memory` counts that rank alone.
using Check = std::function<void(GeometryJob&, CommCounts&, MemoryOwner&)>;
void on_every_rank(const Recipe& recipe, const Geometry& geometry, const Check& check);

// Without control traffic.
WireCosts wire_of(const CommCounts& counts);
std::string text_of(const WireCosts& costs);

// One micro-batch of the job.
WorkShape work_of(const Recipe& recipe, const RankJob& job);

// Expectations of a step on a rank without a pipeline: FLOPs of its micro-batches; what it holds
// between steps and for a while within one.
void expect_flops(const StepReport& report, const WorkShape& work, const RankJob& job);
void expect_memory(const MemoryOwner& memory, const Recipe& recipe, const WorkShape& work,
                   const RankJob& job);

}  // namespace quatrain
