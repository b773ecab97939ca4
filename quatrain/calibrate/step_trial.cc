// SPDX-License-Identifier: Apache-2.0
#include "quatrain/calibrate/step_trial.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>

#include <memory>
#include <vector>

#include "quatrain/comm/self/self.h"
#include "quatrain/cost/lower.h"
#include "quatrain/engine/job.h"
#include "quatrain/spec/plan.h"

namespace quatrain {
namespace {

// The same random tokens every step.
class OneBatch final : public DataLoader {
 public:
  explicit OneBatch(const StepTrial& trial) {
    const std::int64_t B = trial.sequences, T = trial.seq;
    const at::Tensor ids = at::randint(trial.model.vocab, {B, T + 1}, at::kLong);
    batch_.tokens_BT = ids.narrow(1, 0, T).contiguous();
    batch_.labels_BT = ids.narrow(1, 1, T).contiguous();
    batch_.positions_BT = at::arange(T, at::kLong).expand({B, T}).contiguous();
    batch_.sample_ids_B = at::arange(B, at::kLong);
    batch_.trained_tokens = B * T;
  }
  std::int64_t num_microbatches() const override { return 1; }
  const Batch& microbatch(std::int64_t, int) override { return batch_; }
  std::int64_t trained_tokens(std::int64_t) override { return batch_.trained_tokens; }
  std::vector<std::int64_t> cursor(std::int64_t) const override { return {}; }

 private:
  Batch batch_;
};

struct Run {
  std::unique_ptr<Communicator> self = make_self_communicator();
  OneBatch data{step_trial()};
  std::unique_ptr<RankJob> job;
  std::int64_t step = 0;
};

}  // namespace

StepTrial step_trial() {
  ModelSpec model;
  model.hidden = 320;
  model.layers = 3;
  model.heads = model.kv_heads = 5;
  model.head_dim = 64;
  model.ffn = 864;
  model.vocab = 3072;
  model.max_positions = 256;
  return {.model = model, .sequences = 2, .seq = 256};
}

std::function<void()> training_step() {
  const StepTrial trial = step_trial();
  Plan plan;
  plan.seq_len = trial.seq;
  plan.microbatch_size = trial.sequences;
  plan.stage_begin = first_layers({trial.model.layers});
  RankJobOptions options{
      .spec = trial.model, .plan = plan, .build = {.dtype = at::kFloat}, .executor = {.lr = 1e-4}};
  options.schedule = lowered_schedule(options.spec, options.plan, {});
  const auto run = std::make_shared<Run>();
  run->job = std::make_unique<RankJob>(options, run->data, *run->self);
  return [run] { run->job->step(++run->step); };
}

}  // namespace quatrain
