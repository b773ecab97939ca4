// SPDX-License-Identifier: Apache-2.0
// A few steps of one geometry on thread ranks of this process, looked at after every step while all
// ranks stand still.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "quatrain/engine/job.h"
#include "quatrain/verify/pieces.h"

namespace quatrain {

// What may be changed about one rank's run: a planted fault is one of these (inject.h). Made by and
// called on that rank's thread.
class RankHooks {
 public:
  virtual ~RankHooks() = default;
  virtual std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> world) { return world; }
  virtual std::unique_ptr<DataLoader> wrap(std::unique_ptr<DataLoader> data) { return data; }
  virtual void change(RankJobOptions& /*options*/) {}
  virtual void built(RankJob& /*job*/) {}
  virtual void begin_step() {}
  // What a micro-batch carries through a stage, before its forward.
  virtual void on_pass(int /*stage*/, Pass& /*pass*/) {}
  // Shards hold the whole sum of the gradients; the norm and the update come next.
  virtual void on_gradients() {}
};

// One geometry, and all that it trains.
struct Side {
  RankJobOptions job;
  std::function<std::unique_ptr<DataLoader>(const Mesh& mesh)> data;  // of the rank mesh.rank()
  std::function<double(std::int64_t step)> lr_factor = nullptr;       // none: 1
  std::function<std::unique_ptr<RankHooks>(const Mesh& mesh)> hooks = nullptr;
  int threads = 1;  // compute threads a rank
  Mesh mesh(int rank = 0) const { return Mesh(job.plan.degrees, job.plan.axis_order, rank); }
};

struct StepView {
  int step = 0;              // 0: before the first
  StepReport report;         // rank 0's
  ScatteredTensors weights;  // of all ranks
  ScatteredTensors grads;    // of the step; none before the first
  // Mean square of each layer's outputs over all ranks and micro-batches: the same number however
  // rows are cut or copied.
  std::vector<double> outputs;
};

// Runs the steps 1 to `steps`. `visit` sees the state before the first and after each, on rank 0's
// thread; views are valid during the call. It returns whether to go on. Throws what any rank
// throws, and ConfigError for what cannot be built.
void run_steps(const Side& side, int steps, const std::function<bool(const StepView&)>& visit);

// All of it, copied.
struct RunResult {
  std::vector<double> losses, norms;  // of each step
  std::vector<RouterReport> routers;  // likewise
  std::vector<NamedTensors> grads;    // of each step
  std::vector<NamedTensors> weights;  // at the start and after each step
  std::vector<TraceEvent> trace;      // of the last step, of rank 0
};
RunResult run_steps(const Side& side, int steps);

}  // namespace quatrain
