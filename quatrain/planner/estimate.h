// SPDX-License-Identifier: Apache-2.0
// One plan's step: time by part, memory by category on the fullest rank. The parts sum to the step.
#pragma once
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "quatrain/planner/geometry.h"
#include "quatrain/planner/layer_times.h"
#include "quatrain/planner/pipeline.h"
#include "quatrain/planner/rank_work.h"
#include "quatrain/schedule/clock.h"

namespace quatrain {

// Seconds of a step on the slowest pipeline rank; exposed_dp and the optimizer are of the ranks
// that reduce last and update longest.
struct StepParts {
  double compute = 0, exposed_tp = 0, exposed_cp = 0, exposed_ep = 0, exposed_dp = 0;
  double exposed_pp = 0, bubble = 0, optimizer = 0, other = 0;
  double sum() const {
    return compute + exposed_tp + exposed_cp + exposed_ep + exposed_dp + exposed_pp + bubble +
           optimizer + other;
  }
};

// Bytes at the peak on the fullest pipeline rank.
struct MemoryParts {
  int rank = 0;
  double params = 0, grads = 0, optimizer = 0, activations = 0, logits = 0;
  double buffers = 0;   // gathered units, whole gradients, receive slots, one layer's tensors
  double overhead = 0;  // libraries and fragmentation
  double sum() const {
    return params + grads + optimizer + activations + logits + buffers + overhead;
  }
};

struct Estimate {
  StepParts parts;
  MemoryParts memory;
  double step = 0;         // seconds
  double model_flops = 0;  // of the step, all ranks
  double mfu = 0;
  bool fits = false;
};

// What clocked() cannot be below. `quick`: Estimator::estimate()'s.
double least_step(const Estimate& quick);

struct ClockedStep {
  Estimate estimate;
  Timeline timeline;  // in seconds; of the first micro-batches where a long step is folded
};

// Prices the geometries of one job and remembers what they share.
class Estimator {
 public:
  explicit Estimator(const Job& job);  // keeps a reference

  // All quantities; the cost does not grow with ranks outside the pipeline or with micro-batches.
  // Bubbles are the schedules' closed forms. All throw ConfigError for degrees that do not
  // divide the model, and for schedules that take no such counts.
  Estimate estimate(const Geometry& geometry);
  MemoryParts memory(const Geometry& geometry);
  // A bound from below of the step, of computing and what it waits for inside a stage.
  double computing(const Geometry& geometry);
  // The same with the schedule's own rows, timed by the clock with each stage's durations; long
  // steps are folded, since a steady state repeats. `cut`: blocks of each stage; empty: as
  // balanced.
  ClockedStep clocked(const Geometry& geometry, std::span<const std::int64_t> cut = {});

  // clocked() with memory as the runtime's books have it (planner/books.h), milliseconds a pipeline
  // rank; as memory() where they know no such geometry.
  ClockedStep settled(const Geometry& geometry, std::span<const std::int64_t> cut = {});
  MemoryParts booked(const Geometry& geometry, std::span<const std::int64_t> cut = {});

  const std::vector<std::int64_t>& cut(int stages) { return table_.cut(stages); }

 private:
  // What all of ZeRO's stages and replicas of a geometry share.
  struct Priced {
    Geometry of;
    const MicrobatchTimes* times = nullptr;
    const PipelineLoad* pipeline = nullptr;
    std::vector<RankWork> works;
    std::size_t slowest = 0;
  };
  const Priced& priced(const Geometry& geometry);
  const PipelineLoad& pipeline(const Geometry& geometry);

  const Job& job_;
  LayerTable table_;
  std::map<std::tuple<std::string_view, int, int>, PipelineLoad> pipelines_;
  Priced last_;
};

}  // namespace quatrain
