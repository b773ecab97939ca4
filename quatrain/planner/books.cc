// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/books.h"

#include <algorithm>
#include <vector>

#include "quatrain/cost/lower.h"
#include "quatrain/cost/peaks.h"
#include "quatrain/cost/zero.h"
#include "quatrain/planner/memory.h"
#include "quatrain/planner/rank_work.h"

namespace quatrain {
namespace {

double bytes(Bytes b) { return static_cast<double>(b.value); }

// A steady state repeats: fewer micro-batches, as many in flight on each rank.
std::int64_t as_full(const PipelineLoad& pipeline, std::int64_t microbatches) {
  const int fewer = folded(microbatches, pipeline.ranks());
  for (int rank = 0; rank < pipeline.ranks(); ++rank) {
    if (pipeline.in_flight(rank, fewer) != pipeline.in_flight(rank, microbatches)) {
      return microbatches;
    }
  }
  return fewer;
}

// Of the rank of dp_shard and cp with the largest pieces.
StateBytes largest_state(ZeroShape shape, const Plan& plan) {
  const auto total = [](const StateBytes& s) { return s.params + s.grads + s.optimizer; };
  StateBytes most = state_bytes(shape, "adamw", 0.0);
  if (!shape.sharded) return most;
  const Mesh own = shape.mesh;
  for (const int rank : own.group({Axis::kDpShard, Axis::kCp})) {
    shape.mesh = Mesh(plan.degrees, plan.axis_order, rank);
    const StateBytes state = state_bytes(shape, "adamw", 0.0);
    if (total(most) < total(state)) most = state;
  }
  return most;
}

class Books {
 public:
  Books(const Job& job, const MicrobatchTimes& times, const PipelineLoad& pipeline,
        const Geometry& g, std::span<const std::int64_t> cut)
      : job_(job), times_(times), pipeline_(pipeline) {
    Geometry full = g;
    full.microbatches = as_full(pipeline, g.microbatches);
    plan_ = to_plan(job, full, {cut.begin(), cut.end()});
    schedule_ = lowered_schedule(job.model, plan_, {});
    ranks_ = Mesh(plan_.degrees, plan_.axis_order, 0).group(Axis::kPp);
  }

  MemoryParts of(int pp) const {
    const int rank = ranks_[static_cast<std::size_t>(pp)];
    const ZeroShape shape =
        zero_shape(job_.model, plan_, {}, rank, schedule_.rank_of_stage.front());
    const StateBytes state = largest_state(shape, plan_);
    const RowPeaks peaks = highest(schedule_.per_rank[static_cast<std::size_t>(pp)], shape);
    MemoryParts memory;
    memory.rank = pp;
    memory.params = bytes(state.params);
    memory.grads = bytes(state.grads);
    memory.optimizer = bytes(state.optimizer);
    memory.activations = bytes(peaks.activations);
    memory.logits = bytes(peaks.logits);
    memory.buffers = bytes(peaks.gathered) + bytes(peaks.slots) + bytes(peaks.whole_grads) +
                     sum_of(times_, pipeline_.of_rank(pp)).working;
    add_overhead(job_.cluster, memory);
    return memory;
  }

 private:
  // Of the ranks of cp. Where their tokens differ at all, each is asked.
  RowPeaks highest(const std::vector<Action>& row, const ZeroShape& shape) const {
    const auto total = [](const RowPeaks& p) { return p.activations + p.slots + p.logits; };
    RowPeaks most{};
    for (const int rank : shape.mesh.group(Axis::kCp)) {
      const WorkShape work = work_shape(plan_, rank);
      const RowPeaks peaks = row_peaks(row, shape, job_.model, work);
      if (total(most) < total(peaks)) most = peaks;
      if (work.context.even(plan_.seq_len)) break;
    }
    return most;
  }

  const Job& job_;
  const MicrobatchTimes& times_;
  const PipelineLoad& pipeline_;
  Plan plan_;
  Schedule schedule_;
  std::vector<int> ranks_;
};

}  // namespace

bool has_books(const Job& job, const Geometry& g) {
  const bool own = job.cluster.stash_factor == 1.0 && job.cluster.whole_logits == 0.0 &&
                   job.cluster.score_bytes == 0.0;
  const bool exchanges = job.model.experts && (g.ep > 1 || g.etp > g.tp);
  const bool unlike = exchanges && !context_of(g).even(job.seq);
  return own && !unlike && !holds_two_replicas(g.schedule);
}

MemoryParts booked_memory(const Job& job, const MicrobatchTimes& times,
                          const PipelineLoad& pipeline, const Geometry& g,
                          std::span<const std::int64_t> cut, int rank) {
  return Books(job, times, pipeline, g, cut).of(rank);
}

MemoryParts booked_memory(const Job& job, const MicrobatchTimes& times,
                          const PipelineLoad& pipeline, const Geometry& g,
                          std::span<const std::int64_t> cut) {
  const Books books(job, times, pipeline, g, cut);
  MemoryParts most = books.of(0);
  for (int rank = 1; rank < pipeline.ranks(); ++rank) {
    const MemoryParts memory = books.of(rank);
    if (memory.sum() > most.sum()) most = memory;
  }
  return most;
}

}  // namespace quatrain
