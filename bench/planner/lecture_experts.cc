// SPDX-License-Identifier: Apache-2.0
// Expert against tensor parallelism for experts, folded beside attention or not (Liu et al.,
// arXiv:2504.14960); see lecture.h.
#include <limits>

#include "bench/planner/lecture.h"
#include "bench/planner/runs.h"
#include "quatrain/spec/model_io.h"

namespace quatrain::bench {
namespace {

constexpr int kGpus = 64, kStages = 4;
constexpr int kShared = 8;  // ranks of one set of experts

Geometry mixtral(int tp, int etp, std::int64_t batch) {
  Geometry g;
  g.tp = tp;
  g.pp = kStages;
  g.dp_shard = kGpus / (tp * kStages);
  g.ep = kShared / etp;
  g.etp = etp;
  g.zero = 1;
  g.sequence_parallel = tp > 1;
  g.recompute = Recompute::kFull;
  g.microbatches = batch / g.dp_shard;
  return g;
}

// TFLOP/s a GPU.
double rate(const Geometry& geometry, std::int64_t batch) {
  Job job;
  job.model = catalog_model("mixtral-8x7b").spec;
  job.cluster = cluster("h100-sxm-80gb");
  job.gpus = kGpus;
  job.seq = 4096;
  job.global_batch = batch;
  Estimator estimator(job);
  const Estimate estimate = estimator.clocked(geometry).estimate;
  return estimate.model_flops / estimate.step / kGpus / 1e12;
}

}  // namespace

Figure experts_by_width() {
  constexpr std::int64_t kBatch = 256;
  Figure figure{"experts_by_width",
                "Mixtral 8x7B on 64 H100: experts whole or cut",
                "ranks that share an expert (etp; ep: 8 over it)",
                "TFLOP/s a GPU",
                {}};
  for (const bool folded : {false, true}) {
    Curve curve{folded ? "attention whole" : "attention cut alike", {1, 2, 4, 8}, {}, {}};
    curve.published.assign(curve.x.size(), std::numeric_limits<double>::quiet_NaN());
    for (const double width : curve.x) {
      const int etp = static_cast<int>(width);
      curve.predicted.push_back(rate(mixtral(folded ? 1 : etp, etp, kBatch), kBatch));
    }
    figure.curves.push_back(std::move(curve));
  }
  return figure;
}

}  // namespace quatrain::bench
