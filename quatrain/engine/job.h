// SPDX-License-Identifier: Apache-2.0
// One rank's part of a job, put together in the one order that works: groups, model, units and
// their values, optimizer, executor. What trains, evaluates, benchmarks and verifies builds it
// here.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "quatrain/engine/executor.h"
#include "quatrain/spec/plan.h"

namespace quatrain {

// The same on every rank.
struct RankJobOptions {
  ModelSpec spec = {};
  Plan plan = {};           // its number of micro-batches is the schedule's and the data's
  BuildOptions build = {};  // but for its tensor parallelism, which the plan says
  OptimizerOptions optimizer = {};
  ExecutorOptions executor = {};
  Schedule schedule = {};
  std::uint64_t init_seed = 0;
  // Sets every value of this rank in place of drawing them from init_seed: weights from a folder.
  // Called by all ranks of `world`.
  std::function<void(Model& model, ZeroUnits& units, Communicator& world)> fill = nullptr;
};

// What evaluates and decodes: no gradients, no optimizer.
struct RankModel {
  // Made by all ranks of `world` together. The schedule says where stages are; `world` and what
  // `fill` uses outlive it.
  RankModel(const RankJobOptions& options, Communicator& world, bool with_grads = false);

  // In the order they are made; references between them keep the model where it is.
  Plan plan;
  Mesh mesh;
  RankGroups groups;
  Pipeline pipeline;
  Model model;
  ZeroUnits units;
};

class RankJob : public RankModel {
 public:
  // As RankModel. `data` outlives it.
  RankJob(const RankJobOptions& options, DataLoader& data, Communicator& world);

  // A step; with post-validation what all stages agree on comes later (Executor::settled()).
  StepReport run(std::int64_t number, double lr_factor = 1.0) {
    return executor.run(schedule, number, lr_factor);
  }
  // A step, settled.
  StepReport step(std::int64_t number, double lr_factor = 1.0);

  std::unique_ptr<Optimizer> optimizer;
  Executor executor;
  Schedule schedule;
};

}  // namespace quatrain
