// SPDX-License-Identifier: Apache-2.0
// Held-out loss: sums over tokens first, one division at the end, so that neither the size of
// micro-batches nor the number of ranks weighs in.
#include <ATen/ops/tensor.h>

#include <utility>

#include "quatrain/engine/executor.h"
#include "quatrain/engine/model_stages.h"
#include "quatrain/engine/pass_builder.h"
#include "quatrain/engine/row_runner.h"
#include "quatrain/schedule/messages.h"

namespace quatrain {
namespace {

std::int64_t sequences_in(const Batch& batch) {
  return batch.sample_ids_B.ge(0).sum().item<std::int64_t>();
}

// This rank's row of `num_microbatches` forwards, layer by layer, with the gathers that its units
// need.
std::vector<Action> forward_row(const ZeroUnits& units, const Pipeline& pipeline,
                                int num_microbatches) {
  const Schedule schedule =
      with_messages(forward_schedule(pipeline.rank_of_stage(), num_microbatches));
  ZeroPass pass;
  pass.zero_stage = units.frees_values() ? 3 : 0;
  pass.stages = units.stages();
  pass.stages.resize(static_cast<std::size_t>(pipeline.num_stages()));
  for (StageUnits& stage : pass.stages) {
    for (LayerUnits& layer : stage) layer.grads.clear();
  }
  return with_zero(schedule, pass).per_rank[static_cast<std::size_t>(pipeline.rank())];
}

class ForwardStages final : public StageWork {
 public:
  ForwardStages(const Model& model, ZeroUnits& units) : units_(units), stages_(model) {}

  void begin(std::vector<Pass> passes) { stages_.begin(std::move(passes)); }
  LossSums sums() const {
    LossSums all;
    stages_.for_each([&](const Microbatch& microbatch) {
      all.loss += microbatch.sums().loss;
      all.tokens += microbatch.sums().tokens;
    });
    return all;
  }

  void run(const Action& action) override {
    if (action.kind != ActionKind::kForward) return units_.execute(action);
    units_.ready_values(action);
    stages_.compute(action);
  }
  at::Tensor slot(const StageEnd& end) override { return stages_.slot(end); }
  void give(const StageEnd& end, at::Tensor x) override { stages_.give(end, std::move(x)); }
  at::Tensor take(const StageEnd& end) override { return stages_.take(end); }

 private:
  ZeroUnits& units_;
  ModelStages stages_;
};

}  // namespace

EvalReport evaluate(Model& model, ZeroUnits& units, Pipeline& pipeline, DataLoader& data,
                    std::int64_t num_steps) {
  const auto count = static_cast<int>(data.num_microbatches());
  const std::vector<Action> row = forward_row(units, pipeline, count);
  ForwardStages stages(model, units);
  double loss_sum = 0.0;
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  for (std::int64_t step = 0; step < num_steps; ++step) {
    std::vector<Pass> passes;
    for (int m = 0; m < count; ++m) {
      const Batch& batch = data.microbatch(step, m);
      sequences += sequences_in(batch);
      passes.push_back(evaluation_pass(batch, step, m, model.context_parallel()));
    }
    stages.begin(std::move(passes));
    TraceRecorder trace;
    RowRunner runner(pipeline, stages, trace);
    runner.run(row);
    runner.finish();
    loss_sum += stages.sums().loss;
    tokens += stages.sums().tokens;
  }
  const at::Tensor loss = at::tensor({loss_sum}, at::TensorOptions(at::kDouble));
  const at::Tensor counted = at::tensor({tokens}, at::TensorOptions(at::kLong));
  const at::Tensor read = at::tensor({sequences}, at::TensorOptions(at::kLong));
  for (const at::Tensor& sum : {loss, counted}) {
    units.seers().all_reduce(sum, ReduceOp::kSum).wait();
  }
  units.readers().all_reduce(read, ReduceOp::kSum).wait();
  for (const at::Tensor& of_last_stage : {loss, counted}) {
    units.stage_ranks().all_reduce(of_last_stage, ReduceOp::kSum).wait();
  }
  EvalReport report;
  report.tokens = counted.item<std::int64_t>();
  report.sequences = read.item<std::int64_t>();
  if (report.tokens > 0) report.loss = loss.item<double>() / static_cast<double>(report.tokens);
  return report;
}

EvalReport evaluate(Model& model, ZeroUnits& units, Pipeline& pipeline, DataLoader& data) {
  return evaluate(model, units, pipeline, data, num_eval_steps(data));
}

}  // namespace quatrain
