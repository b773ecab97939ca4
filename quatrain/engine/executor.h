// SPDX-License-Identifier: Apache-2.0
// Trains: runs one rank's row of a schedule. Knows no schedule by name: a new schedule needs no
// change here.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "quatrain/comm/communicator.h"
#include "quatrain/data/data_loader.h"
#include "quatrain/engine/model_stages.h"
#include "quatrain/engine/pipeline.h"
#include "quatrain/engine/step_report.h"
#include "quatrain/engine/zero_units.h"
#include "quatrain/model/model.h"
#include "quatrain/optim/optimizer.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {

struct ExecutorOptions {
  double lr = 0.0;  // peak; the factor comes with run()
  double max_norm = 0.0;
  bool post_validation = false;  // the next step begins before all stages have agreed on this one
  double z_loss = 0.0;
  double router_z_loss = 0.0;
  double router_bias_rate = 0.0;  // of experts' selection biases, a step; 0: they stay
  std::uint64_t seed = 0;
  bool trace = false;
  // Called when the shards hold the step's whole gradients, before their norm and the update.
  std::function<void()> on_gradients = nullptr;
  LayerObserver on_output = nullptr;  // of every micro-batch
  // Called behind each action of a row but messages.
  std::function<void(const Action& action)> after_action = nullptr;
  PassHook on_pass = nullptr;  // of every stage and micro-batch
};

class Executor {
 public:
  // What it works on; all of it outlives the executor. `units`: the model's, allocated. `world`:
  // every rank of the job.
  struct Parts {
    Model& model;
    ZeroUnits& units;
    Pipeline& pipeline;
    Optimizer& optimizer;
    DataLoader& data;
    Communicator& world;
  };
  Executor(const Parts& parts, const ExecutorOptions& options);
  ~Executor();
  // One optimizer step. Gradients start at zero and stay until the next call. Throws BugError for
  // an action that the row's state does not allow, and when the row leaves work undone. With
  // post-validation the report lacks what all stages have to agree on (loss, norms, maxima,
  // skipped), and the step before is settled first, under this one's first forwards.
  StepReport run(const Schedule& schedule, std::int64_t step, double lr_factor);
  // With post-validation, between steps: settles the last one, so that weights are what they would
  // be without it.
  void settle();
  // The report of the last step that is settled.
  const StepReport& settled() const;
  // float64 [L, E]: choices of each layer's experts in the last update's step, over all ranks;
  // undefined before the first one and with post-validation. With BalanceOver::kGlobalBatch the
  // next step depends on them, so that who goes on from a checkpoint has to give them.
  const at::Tensor& router_loads() const;
  void set_router_loads(at::Tensor loads_LE);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Token-weighted mean loss over every sequence of the loader, each counted once: forwards alone, on
// the same stages. Called by all ranks; all get the report.
struct EvalReport {
  double loss = 0.0;
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
};
EvalReport evaluate(Model& model, ZeroUnits& units, Pipeline& pipeline, DataLoader& data);
// The same over steps [0, num_steps) of any loader.
EvalReport evaluate(Model& model, ZeroUnits& units, Pipeline& pipeline, DataLoader& data,
                    std::int64_t num_steps);

}  // namespace quatrain
