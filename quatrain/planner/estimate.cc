// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/estimate.h"

#include <algorithm>
#include <utility>

#include "quatrain/planner/books.h"
#include "quatrain/planner/data_time.h"
#include "quatrain/planner/memory.h"
#include "quatrain/planner/stragglers.h"

namespace quatrain {
namespace {

// Communication that computing waits for lies in the passes that make it: the forward and the
// input half.
RankTimes rank_times(const LayerTimes& work, double message) {
  return {work.forward + work.exposed() / 2, work.input + work.exposed() / 2, work.weight, message};
}

void finish(const Job& job, const Geometry& g, double flops_per_sequence, Estimate& result) {
  add_unevenness(job, g, result.parts);
  result.step = result.parts.sum();
  result.fits = result.memory.sum() <= job.cluster.memory_bytes;
  result.model_flops = static_cast<double>(job.global_batch) * flops_per_sequence;
  result.mfu = result.model_flops / (result.step * job.gpus * job.cluster.peak(job.dtype));
}

// All but memory, by closed forms. `work`: of the slowest rank.
Estimate quick(const Job& job, const MicrobatchTimes& times, const PipelineLoad& pipeline,
               const Geometry& g, const RankWork& work) {
  const double m = static_cast<double>(g.microbatches);
  Estimate result;
  StepParts& parts = result.parts;
  parts.compute = m * work.sum.compute();
  parts.exposed_tp = m * work.sum.tp;
  parts.exposed_cp = m * work.sum.cp;
  parts.exposed_ep = m * work.sum.ep;
  parts.bubble = pipeline.bubble(g.microbatches, rank_times(work.sum, 0.0));
  if (g.pp > 1) parts.exposed_pp = 2 * (g.pp - 1) * message_seconds(job, times, g);
  const DataTimes data = data_times(job, g, work);
  parts.exposed_dp = data.unhidden(parts.bubble) + data.gather;
  parts.optimizer = data.optimizer;
  return result;
}

Durations durations_of(const MicrobatchTimes& times, const PipelineLoad& pipeline, double message) {
  Durations durations;
  durations.wires = Wires::kLanes;
  for (const LayerCounts& layers : pipeline.of_stage()) {
    durations.of_stage.push_back(to_stage(rank_times(sum_of(times, layers), message)));
  }
  return durations;
}

// A step on the clock, seconds.
struct Clocked {
  Timeline timeline;  // of the micro-batches that are shown
  double folded = 0;  // of those that are not: all ranks end later by it
  double makespan() const { return timeline.makespan + folded; }
};

// A step of `microbatches`, by two lengths of a steady state.
Clocked clock_of(const PipelineLoad& pipeline, std::int64_t microbatches,
                 const Durations& durations) {
  const int shown = folded(microbatches, pipeline.ranks());
  Clocked step{simulate(pipeline.rows(shown), durations)};
  if (microbatches == shown) return step;
  const int p = pipeline.ranks();
  const double before = simulate(pipeline.rows(shown - p), durations).makespan;
  step.folded = static_cast<double>((microbatches - shown) / p) * (step.timeline.makespan - before);
  return step;
}

// Updates begin when all ranks have reduced their gradients, since their norm is of all; the step
// ends with the longest update.
void add_data(const Job& job, const MicrobatchTimes& times, const PipelineLoad& pipeline,
              const Geometry& g, const Clocked& step, StepParts& parts) {
  double reduced = step.makespan();
  DataTimes longest;
  for (int rank = 0; rank < pipeline.ranks(); ++rank) {
    const RankWork work = rank_work(job, times, pipeline, rank);
    const DataTimes data = data_times(job, g, work);
    const auto& row = step.timeline.per_rank[static_cast<std::size_t>(rank)];
    const double end = row.back().end + step.folded;
    const double busy = static_cast<double>(g.microbatches) * work.sum.total();
    const double idle = std::max(0.0, end - row.front().begin - busy);
    reduced = std::max(reduced, end + data.unhidden(idle));
    if (data.behind() > longest.behind()) longest = data;
  }
  parts.exposed_dp = reduced - step.makespan() + longest.gather;
  parts.optimizer = longest.optimizer;
}

}  // namespace

// The clock may find a shorter bubble, or a longer one: what ZeRO 2 and 3 then hide more is less
// than what it is longer.
double least_step(const Estimate& quick) {
  return quick.step - quick.parts.bubble - quick.parts.exposed_pp;
}

Estimator::Estimator(const Job& job) : job_(job), table_(job) {}

const PipelineLoad& Estimator::pipeline(const Geometry& g) {
  const std::tuple key{g.schedule, g.pp, g.chunks};
  const auto known = pipelines_.find(key);
  if (known != pipelines_.end()) return known->second;
  return pipelines_
      .emplace(key,
               PipelineLoad(g.schedule, g.pp, g.chunks, table_.kinds(), table_.cut(g.stages())))
      .first->second;
}

const Estimator::Priced& Estimator::priced(const Geometry& g) {
  Geometry of = g;
  of.zero = 0;
  of.dp_replicate = 1;
  of.dp_shard = g.dp();
  if (last_.times != nullptr && last_.of == of) return last_;
  const MicrobatchTimes& times = table_.at(g);
  const PipelineLoad& own = pipeline(g);
  last_ = {of, &times, &own, rank_works(job_, times, own), 0};
  last_.slowest = slowest(last_.works);
  return last_;
}

Estimate Estimator::estimate(const Geometry& g) {
  const Priced& p = priced(g);
  Estimate result = quick(job_, *p.times, *p.pipeline, g, p.works[p.slowest]);
  result.memory = fullest(job_, *p.times, *p.pipeline, g, p.works);
  finish(job_, g, table_.model_flops_per_sequence(), result);
  return result;
}

MemoryParts Estimator::memory(const Geometry& g) {
  const Priced& p = priced(g);
  return fullest(job_, *p.times, *p.pipeline, g, p.works);
}

double Estimator::computing(const Geometry& g) {
  const Priced& p = priced(g);
  return static_cast<double>(g.microbatches) * p.works[p.slowest].sum.total() * solo_factor(job_);
}

ClockedStep Estimator::clocked(const Geometry& g, std::span<const std::int64_t> cut) {
  const MicrobatchTimes& times = table_.at(g);
  const PipelineLoad own =
      cut.empty() ? pipeline(g) : PipelineLoad(g.schedule, g.pp, g.chunks, table_.kinds(), cut);
  const std::vector<RankWork> works = rank_works(job_, times, own);
  ClockedStep result{quick(job_, times, own, g, works[slowest(works)]), {}};
  result.estimate.memory = fullest(job_, times, own, g, works);
  StepParts& parts = result.estimate.parts;
  Clocked step =
      clock_of(own, g.microbatches, durations_of(times, own, message_seconds(job_, times, g)));
  if (g.pp > 1) {
    const double without = clock_of(own, g.microbatches, durations_of(times, own, 0.0)).makespan();
    const double work = parts.compute + parts.exposed_tp + parts.exposed_cp + parts.exposed_ep;
    parts.exposed_pp = std::max(0.0, step.makespan() - without);
    parts.bubble = std::max(0.0, without - work);
  }
  add_data(job_, times, own, g, step, parts);
  result.timeline = std::move(step.timeline);
  finish(job_, g, table_.model_flops_per_sequence(), result.estimate);
  return result;
}

MemoryParts Estimator::booked(const Geometry& g, std::span<const std::int64_t> cut) {
  if (cut.empty()) cut = table_.cut(g.stages());
  const MicrobatchTimes& times = table_.at(g);
  const PipelineLoad own(g.schedule, g.pp, g.chunks, table_.kinds(), cut);
  if (has_books(job_, g)) return booked_memory(job_, times, own, g, cut);
  return fullest(job_, times, own, g, rank_works(job_, times, own));
}

ClockedStep Estimator::settled(const Geometry& g, std::span<const std::int64_t> cut) {
  ClockedStep result = clocked(g, cut);
  result.estimate.memory = booked(g, cut);
  result.estimate.fits = result.estimate.memory.sum() <= job_.cluster.memory_bytes;
  return result;
}

}  // namespace quatrain
