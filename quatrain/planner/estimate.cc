// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/estimate.h"

#include <algorithm>

#include "quatrain/planner/books.h"
#include "quatrain/planner/collective.h"
#include "quatrain/planner/memory.h"
#include "quatrain/planner/op_time.h"

namespace quatrain {
namespace {

constexpr double kHidden = 0.9;  // share of a window of computation that communication may use
// AdamW in bf16 reads and writes a master and two moments, reads a gradient and writes a value.
constexpr double kUpdateBytes = 30;

struct DataTimes {
  double exposed = 0, optimizer = 0;
};

// Collectives of one step among the ranks that hold `parameters` alike.
struct DataTraffic {
  double hideable = 0;  // under computation
  double gather = 0;    // of updated weights, behind the optimizer
};
DataTraffic data_traffic(const Job& job, const Geometry& g, double parameters, GroupShape group) {
  const double value = static_cast<double>(size_of(job.dtype)) * parameters;
  const double wide_value = static_cast<double>(size_of(wide(job.dtype))) * parameters;
  const auto seconds = [&](CommKind kind, GroupShape over, double bytes) {
    return collective_seconds(job.cluster, kind, over, bytes);
  };
  if (g.zero == 0) return {seconds(CommKind::kAllReduce, group, wide_value), 0.0};
  const GroupShape shard{std::max(1, group.size / g.dp_replicate), group.stride};
  const GroupShape replicas{g.dp_replicate, group.stride * shard.size};
  const double m = static_cast<double>(g.microbatches);
  DataTraffic traffic;
  traffic.hideable =
      (g.zero == 1 ? 1.0 : m) * seconds(CommKind::kReduceScatter, shard, wide_value) +
      seconds(CommKind::kAllReduce, replicas, wide_value / shard.size);
  const double gather = seconds(CommKind::kAllGather, shard, value);
  if (g.zero < 3) {
    traffic.gather = gather;
  } else {
    traffic.hideable += 2 * m * gather;  // each unit for its forward and its input half
  }
  return traffic;
}

DataTimes data_times(const Job& job, const Geometry& g, const RankWork& work) {
  DataTraffic traffic = data_traffic(job, g, work.outside, {g.dp() * g.cp, g.tp});
  if (work.experts > 0) {
    const DataTraffic more = data_traffic(job, g, work.experts, {g.expert_dp(), g.ep * g.etp});
    traffic.hideable += more.hideable;
    traffic.gather += more.gather;
  }
  const double m = static_cast<double>(g.microbatches);
  const LayerTimes& sum = work.sum;
  const double backward = sum.input + sum.weight;
  const double work_time = g.zero == 3 ? m * sum.compute() : g.zero == 2 ? m * backward : backward;
  // What cp's rings hide under is taken.
  const double window = kHidden * work_time * (1 - sum.hiding / sum.compute());
  const double hidden = std::min(traffic.hideable, window);
  // The last unit's gradients have nothing left to hide under.
  const double last = traffic.hideable / (work.blocks + 1) / (g.zero >= 2 ? m : 1.0);
  const Shards shards = shards_of(g);
  const double updated = work.outside / shards.outside + work.experts / shards.experts;
  DataTimes result;
  result.exposed = traffic.gather + std::max(traffic.hideable - hidden, last) + kTheft * hidden;
  result.optimizer = moving_seconds(job, kUpdateBytes * updated, 1);
  return result;
}

// Communication that computing waits for lies in the passes that make it: the forward and the
// input half.
RankTimes rank_times(const LayerTimes& work, double message) {
  return {work.forward + work.exposed() / 2, work.input + work.exposed() / 2, work.weight, message};
}

void finish(const Job& job, double flops_per_sequence, Estimate& result) {
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
  if (g.pp > 1) parts.exposed_pp = 2 * (g.pp - 1) * times.message;
  const DataTimes data = data_times(job, g, work);
  parts.exposed_dp = data.exposed;
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

// From the first begin to the last end of `microbatches`, by two lengths of a steady state.
double makespan(const PipelineLoad& pipeline, std::int64_t microbatches, const Durations& durations,
                Timeline* timeline) {
  const int shown = folded(microbatches, pipeline.ranks());
  Timeline first = simulate(pipeline.rows(shown), durations);
  double span = first.makespan;
  if (timeline != nullptr) *timeline = std::move(first);
  if (microbatches == shown) return span;
  const int p = pipeline.ranks();
  const double before = simulate(pipeline.rows(shown - p), durations).makespan;
  return span + static_cast<double>((microbatches - shown) / p) * (span - before);
}

}  // namespace

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
  finish(job_, table_.model_flops_per_sequence(), result);
  return result;
}

MemoryParts Estimator::memory(const Geometry& g) {
  const Priced& p = priced(g);
  return fullest(job_, *p.times, *p.pipeline, g, p.works);
}

double Estimator::computing(const Geometry& g) {
  const Priced& p = priced(g);
  return static_cast<double>(g.microbatches) * p.works[p.slowest].sum.total();
}

ClockedStep Estimator::clocked(const Geometry& g, std::span<const std::int64_t> cut) {
  const MicrobatchTimes& times = table_.at(g);
  const PipelineLoad own =
      cut.empty() ? pipeline(g) : PipelineLoad(g.schedule, g.pp, g.chunks, table_.kinds(), cut);
  const std::vector<RankWork> works = rank_works(job_, times, own);
  ClockedStep result{quick(job_, times, own, g, works[slowest(works)]), {}};
  result.estimate.memory = fullest(job_, times, own, g, works);
  StepParts& parts = result.estimate.parts;
  const double with =
      makespan(own, g.microbatches, durations_of(times, own, times.message), &result.timeline);
  if (g.pp > 1) {
    const double without = makespan(own, g.microbatches, durations_of(times, own, 0.0), nullptr);
    const double work = parts.compute + parts.exposed_tp + parts.exposed_cp + parts.exposed_ep;
    parts.exposed_pp = std::max(0.0, with - without);
    parts.bubble = std::max(0.0, without - work);
  }
  finish(job_, table_.model_flops_per_sequence(), result.estimate);
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
