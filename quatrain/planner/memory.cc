// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/memory.h"

#include <algorithm>

#include "quatrain/cost/zero.h"

namespace quatrain {
namespace {

// Bytes of gathered units (stage 3: the one at work and one ahead) and of one whole gradient.
double unit_buffers(const Geometry& g, double unit, double value, double wide_value) {
  if (g.zero < 2 || shards_of(g).outside == 1) return 0.0;
  return unit * (g.zero == 3 ? 2 * value + wide_value : wide_value);
}

// Whether a layer's weight half follows its input half as an action of its own (cost/lower.h): else
// what the one makes for the other is scratch.
bool halves_by_layer(const PipelineLoad& pipeline, const Geometry& g) {
  return !pipeline.splits_backward() && g.tp == 1 && g.dp() * g.cp > 1;
}

double uncertain(const MemoryParts& quick) {
  constexpr double kWithin = 0.1;
  return kWithin * (quick.activations + quick.buffers + quick.overhead);
}

}  // namespace

Shards shards_of(const Geometry& g) {
  if (g.zero == 0) return {};
  return {g.dp_shard * g.cp, std::max(1, g.expert_dp() / g.dp_replicate)};
}

void add_overhead(const ClusterSpec& cluster, MemoryParts& memory) {
  memory.overhead = 0;
  memory.overhead = cluster.overhead_bytes + cluster.fragmentation * memory.sum();
}

double least_memory(const MemoryParts& quick) { return quick.sum() - uncertain(quick); }
double most_memory(const MemoryParts& quick) { return quick.sum() + uncertain(quick); }

MemoryParts memory_of(const Job& job, const MicrobatchTimes& times, const PipelineLoad& pipeline,
                      const Geometry& g, const RankWork& work) {
  const Shards shards = shards_of(g);
  const std::int64_t value = size_of(job.dtype), wide_value = size_of(wide(job.dtype));
  const std::int64_t state = (value == wide_value ? 2 : 3) * wide_value;
  const auto kept = [&](const BytesPerParameter& bytes) {
    return even_zero_bytes(work.outside, shards.outside, g.zero, bytes) +
           even_zero_bytes(work.experts, shards.experts, g.zero, bytes);
  };
  MemoryParts memory;
  memory.rank = work.rank;
  memory.params = kept({value, 0, 0});
  memory.grads = kept({0, wide_value, 0});
  memory.optimizer = kept({0, 0, state});
  const double head = work.head ? times.head.stash : 0.0;  // gone before the next one
  const LayerTimes& sum = work.sum;
  memory.activations =
      pipeline.in_flight(work.rank, g.microbatches) * (sum.stash - head) + head +
      pipeline.deferred(work.rank, g.microbatches) * std::max(0.0, sum.late - sum.stash);
  if (halves_by_layer(pipeline, g)) memory.activations += sum.growth;
  if (work.head) memory.logits = times.logits;
  memory.buffers = unit_buffers(g, work.largest_unit, static_cast<double>(value),
                                static_cast<double>(wide_value));
  if (pipeline.ranks() > 1) memory.buffers += 2 * times.message_bytes;
  // What is made again, or gradients of the same shapes, while one layer is at work.
  memory.buffers += sum.working;
  add_overhead(job.cluster, memory);
  return memory;
}

MemoryParts fullest(const Job& job, const MicrobatchTimes& times, const PipelineLoad& pipeline,
                    const Geometry& g, const std::vector<RankWork>& works) {
  MemoryParts most;
  for (const RankWork& work : works) {
    const MemoryParts memory = memory_of(job, times, pipeline, g, work);
    if (memory.sum() > most.sum()) most = memory;
  }
  return most;
}

}  // namespace quatrain
