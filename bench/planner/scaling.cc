// SPDX-License-Identifier: Apache-2.0
// See scaling.h.
#include "bench/planner/scaling.h"

#include <algorithm>

#include "quatrain/spec/model_io.h"

namespace quatrain::bench {
namespace {

constexpr int kLargest = 16384;

// `fixed`: degrees that stay and micro-batches of a data rank; `most_shards`: data ranks beyond
// these hold copies.
Scaling scaled(std::string name, const std::string& model, int fewest, const Geometry& fixed,
               int most_shards = kLargest) {
  Scaling scaling{std::move(name), {}};
  for (int gpus = fewest; gpus <= kLargest; gpus *= 4) {
    Geometry geometry = fixed;
    const int data = gpus / (fixed.tp * fixed.pp);
    geometry.dp_shard = std::min(data, most_shards);
    geometry.dp_replicate = data / geometry.dp_shard;
    Job job;
    job.model = catalog_model(model).spec;
    job.cluster = cluster("h100-sxm-80gb");
    job.gpus = gpus;
    job.seq = 8192;
    job.global_batch = data * geometry.micro_batch * geometry.microbatches;
    Estimator estimator(job);
    const Estimate estimate = estimator.clocked(geometry).estimate;
    scaling.rows.push_back({gpus, geometry, estimate.parts, estimate.step, estimate.fits});
  }
  return scaling;
}

}  // namespace

std::vector<Scaling> weak_scaling() {
  Geometry sharded;
  sharded.zero = 3;
  sharded.microbatches = 4;
  sharded.recompute = Recompute::kSelective;
  Geometry tensor = sharded;
  tensor.zero = 1;
  tensor.tp = 4;
  tensor.sequence_parallel = true;
  tensor.microbatches = 16;
  Geometry large = tensor;
  large.tp = 8;
  large.pp = 16;
  large.chunks = 7;
  large.schedule = "interleaved-1f1b";
  return {scaled("8B, ZeRO-3 over all", "llama-3.1-8b", 16, sharded),
          scaled("8B, ZeRO-3 in groups of 64", "llama-3.1-8b", 16, sharded, 64),
          scaled("8B, tp 4 and ZeRO-1", "llama-3.1-8b", 16, tensor),
          scaled("405B, tp 8, pp 16 and ZeRO-1", "llama-3.1-405b", 1024, large)};
}

}  // namespace quatrain::bench
