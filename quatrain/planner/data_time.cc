// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/data_time.h"

#include <algorithm>

#include "quatrain/planner/collective.h"
#include "quatrain/planner/memory.h"
#include "quatrain/planner/op_time.h"

namespace quatrain {
namespace {

constexpr double kHidden = 0.9;  // share of a window of computation that communication may use
// AdamW in bf16 reads and writes a master and two moments, reads a gradient and writes a value.
constexpr double kUpdateBytes = 30;

// Adds the collectives of one step among the ranks that hold `parameters` alike.
void add_traffic(const Job& job, const Geometry& g, double parameters, GroupShape group,
                 DataTimes& times) {
  const double value = static_cast<double>(size_of(job.dtype)) * parameters;
  const double wide_value = static_cast<double>(size_of(wide(job.dtype))) * parameters;
  const auto seconds = [&](CommKind kind, GroupShape over, double bytes) {
    return collective_seconds(job.cluster, kind, over, bytes);
  };
  if (g.zero == 0) {
    times.hideable += seconds(CommKind::kAllReduce, group, wide_value);
    return;
  }
  const GroupShape shard{std::max(1, group.size / g.dp_replicate), group.stride};
  const GroupShape replicas{g.dp_replicate, group.stride * shard.size};
  const double m = static_cast<double>(g.microbatches);
  times.hideable += (g.zero == 1 ? 1.0 : m) * seconds(CommKind::kReduceScatter, shard, wide_value) +
                    seconds(CommKind::kAllReduce, replicas, wide_value / shard.size);
  const double gather = seconds(CommKind::kAllGather, shard, value);
  if (g.zero < 3) {
    times.gather += gather;
  } else {
    times.hideable += 2 * m * gather;  // each unit for its forward and its input half
  }
}

}  // namespace

double DataTimes::unhidden(double idle) const {
  const double hidden = std::min(hideable, kHidden * (window + (throughout ? idle : 0.0)));
  return std::max(hideable - hidden, last) + theft * hidden;
}

DataTimes data_times(const Job& job, const Geometry& g, const RankWork& work) {
  DataTimes times;
  add_traffic(job, g, work.outside, {g.dp() * g.cp, g.tp}, times);
  if (work.experts > 0) add_traffic(job, g, work.experts, {g.expert_dp(), g.ep * g.etp}, times);
  const double m = static_cast<double>(g.microbatches);
  const LayerTimes& sum = work.sum;
  // What cp's rings hide under is taken.
  const double backward = sum.input + sum.weight - sum.hiding_input;
  times.window = g.zero == 3   ? m * (sum.compute() - sum.hiding)
                 : g.zero == 2 ? m * backward
                               : backward;
  times.last = times.hideable / (work.blocks + 1) / (g.zero >= 2 ? m : 1.0);
  times.throughout = g.zero >= 2;
  times.theft = job.cluster.theft;
  const Shards shards = shards_of(g);
  const double updated = work.outside / shards.outside + work.experts / shards.experts;
  times.optimizer = moving_seconds(job, kUpdateBytes * updated, 1);
  return times;
}

}  // namespace quatrain
