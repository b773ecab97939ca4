// SPDX-License-Identifier: Apache-2.0
// What one pipeline rank of a geometry does and holds, whatever ZeRO's stage and the number of data
// ranks: summed once for many plans.
#pragma once
#include <vector>

#include "quatrain/planner/layer_times.h"
#include "quatrain/planner/pipeline.h"

namespace quatrain {

struct RankWork {
  int rank = 0;
  LayerTimes sum;  // of its layers
  double blocks = 0;
  bool head = false;
  // Parameters that one rank of tp, ep and etp holds before ZeRO cuts them.
  double outside = 0, experts = 0;  // outside experts, in them
  double largest_unit = 0;          // of the pieces that ZeRO gathers and reduces
};

RankWork rank_work(const Job& job, const MicrobatchTimes& times, const PipelineLoad& pipeline,
                   int rank);
// Of the pipeline's telling ranks.
std::vector<RankWork> rank_works(const Job& job, const MicrobatchTimes& times,
                                 const PipelineLoad& pipeline);
// Which has most to do for a micro-batch.
std::size_t slowest(const std::vector<RankWork>& ranks);

}  // namespace quatrain
