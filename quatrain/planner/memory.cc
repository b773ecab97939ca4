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
bool halves_by_layer(const Pipeline& pipeline, const Geometry& g) {
  return !pipeline.splits_backward() && g.tp == 1 && g.dp() > 1;
}

}  // namespace

HeldParameters held_parameters(const Job& job, const MicrobatchTimes& times,
                               const Pipeline& pipeline, int rank) {
  const LayerCounts& layers = pipeline.of_rank(rank);
  const LayerTimes sum = sum_of(times, layers);
  HeldParameters held;
  held.outside = sum.parameters;
  held.experts = sum.experts;
  // A tied head on another rank than the embedding has a copy of the table.
  if (job.model.tied && layers.head > 0 && layers.embedding == 0) held.outside += times.table;
  for (std::size_t kind = 0; kind < kMostKinds; ++kind) {
    const LayerTimes& block = times.block[kind];
    if (layers.blocks[kind] > 0) {
      held.largest_unit = std::max(held.largest_unit, block.parameters + block.experts);
    }
  }
  if (layers.embedding > 0)
    held.largest_unit = std::max(held.largest_unit, times.embedding.parameters);
  if (layers.head > 0) held.largest_unit = std::max(held.largest_unit, times.head.parameters);
  return held;
}

Shards shards_of(const Geometry& g) {
  if (g.zero == 0) return {};
  return {g.dp_shard * g.cp, std::max(1, g.expert_dp() / g.dp_replicate)};
}

MemoryParts memory_of(const Job& job, const MicrobatchTimes& times, const Pipeline& pipeline,
                      const Geometry& g, int rank) {
  const LayerCounts& layers = pipeline.of_rank(rank);
  const LayerTimes sum = sum_of(times, layers);
  const HeldParameters held = held_parameters(job, times, pipeline, rank);
  const Shards shards = shards_of(g);
  const std::int64_t value = size_of(job.dtype), wide_value = size_of(wide(job.dtype));
  const std::int64_t state = (value == wide_value ? 2 : 3) * wide_value;
  const auto kept = [&](const BytesPerParameter& bytes) {
    return even_zero_bytes(held.outside, shards.outside, g.zero, bytes) +
           even_zero_bytes(held.experts, shards.experts, g.zero, bytes);
  };
  MemoryParts memory;
  memory.rank = rank;
  memory.params = kept({value, 0, 0});
  memory.grads = kept({0, wide_value, 0});
  memory.optimizer = kept({0, 0, state});
  const double ends = layers.head > 0 ? times.head.stash : 0.0;  // gone before the next one
  memory.activations =
      pipeline.in_flight(rank, g.microbatches) * (sum.stash - ends) + ends +
      pipeline.deferred(rank, g.microbatches) * std::max(0.0, sum.late - sum.stash);
  if (halves_by_layer(pipeline, g)) memory.activations += sum.growth;
  if (layers.head > 0) memory.logits = times.logits;
  memory.buffers = unit_buffers(g, held.largest_unit, static_cast<double>(value),
                                static_cast<double>(wide_value));
  if (pipeline.ranks() > 1) memory.buffers += 2 * times.message_bytes;
  // What is made again, or gradients of the same shapes, while one layer is at work.
  memory.buffers += sum.working;
  memory.overhead = job.cluster.overhead_bytes + job.cluster.fragmentation * memory.sum();
  return memory;
}

MemoryParts fullest(const Job& job, const MicrobatchTimes& times, const Pipeline& pipeline,
                    const Geometry& g) {
  MemoryParts most = memory_of(job, times, pipeline, g, 0);
  for (const int rank : pipeline.telling_ranks()) {
    const MemoryParts memory = memory_of(job, times, pipeline, g, rank);
    if (memory.sum() > most.sum()) most = memory;
  }
  return most;
}

}  // namespace quatrain
