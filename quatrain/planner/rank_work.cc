// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/rank_work.h"

#include <algorithm>

namespace quatrain {

RankWork rank_work(const Job& job, const MicrobatchTimes& times, const PipelineLoad& pipeline,
                   int rank) {
  const LayerCounts& layers = pipeline.of_rank(rank);
  RankWork work;
  work.rank = rank;
  work.sum = sum_of(times, layers);
  work.blocks = layers.all_blocks();
  work.head = layers.head > 0;
  work.outside = work.sum.parameters;
  work.experts = work.sum.experts;
  // A tied head on another rank than the embedding has a copy of the table.
  if (job.model.tied && work.head && layers.embedding == 0) work.outside += times.table;
  for (std::size_t kind = 0; kind < kMostKinds; ++kind) {
    const LayerTimes& block = times.block[kind];
    if (layers.blocks[kind] == 0) continue;
    work.largest_unit = std::max(work.largest_unit, block.parameters + block.experts);
  }
  if (layers.embedding > 0) {
    work.largest_unit = std::max(work.largest_unit, times.embedding.parameters);
  }
  if (work.head) work.largest_unit = std::max(work.largest_unit, times.head.parameters);
  return work;
}

std::vector<RankWork> rank_works(const Job& job, const MicrobatchTimes& times,
                                 const PipelineLoad& pipeline) {
  std::vector<RankWork> works;
  for (const int rank : pipeline.telling_ranks()) {
    works.push_back(rank_work(job, times, pipeline, rank));
  }
  return works;
}

std::size_t slowest(const std::vector<RankWork>& ranks) {
  const auto most = std::max_element(
      ranks.begin(), ranks.end(),
      [](const RankWork& a, const RankWork& b) { return a.sum.total() < b.sum.total(); });
  return static_cast<std::size_t>(most - ranks.begin());
}

}  // namespace quatrain
