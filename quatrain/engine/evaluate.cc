// SPDX-License-Identifier: Apache-2.0
// Held-out loss: sums over tokens first, one division at the end, so that neither the size of
// micro-batches nor the number of ranks weighs in.
#include <ATen/ops/tensor.h>

#include <utility>

#include "quatrain/engine/executor.h"
#include "quatrain/engine/microbatch.h"
#include "quatrain/engine/pass_builder.h"

namespace quatrain {
namespace {

std::int64_t sequences_in(const Batch& batch) {
  return batch.sample_ids_B.ge(0).sum().item<std::int64_t>();
}

// One forward, layer by layer, with the gathers that the units need.
std::vector<Action> forward_row(const ZeroUnits& units) {
  Schedule schedule;
  schedule.per_rank.assign(1, {Action{}});
  schedule.per_rank[0][0].microbatch = 0;
  ZeroPass pass;
  pass.zero_stage = units.frees_values() ? 3 : 0;
  pass.stages = {units.layers()};
  for (LayerUnits& layer : pass.stages[0]) layer.grads.clear();
  return with_zero(schedule, pass).per_rank[0];
}

LossSums forward(Model& model, ZeroUnits& units, const std::vector<Action>& row, Pass pass) {
  Microbatch microbatch(model.layers(), std::move(pass));
  for (const Action& action : row) {
    if (action.kind == ActionKind::kForward) {
      units.ready_values(action);
      microbatch.forward(action.unit);
    } else {
      units.execute(action);
    }
  }
  return microbatch.sums();
}

}  // namespace

EvalReport evaluate(Model& model, ZeroUnits& units, DataLoader& data, std::int64_t num_steps) {
  const std::vector<Action> row = forward_row(units);
  double loss_sum = 0.0;
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  for (std::int64_t step = 0; step < num_steps; ++step) {
    for (int m = 0; m < data.num_microbatches(); ++m) {
      const Batch& batch = data.microbatch(step, m);
      const LossSums sums = forward(model, units, row, evaluation_pass(batch, step, m));
      loss_sum += sums.loss;
      tokens += sums.tokens;
      sequences += sequences_in(batch);
    }
  }
  const at::Tensor loss = at::tensor({loss_sum}, at::TensorOptions(at::kDouble));
  const at::Tensor counts = at::tensor({tokens, sequences}, at::TensorOptions(at::kLong));
  units.readers().all_reduce(loss, ReduceOp::kSum).wait();
  units.readers().all_reduce(counts, ReduceOp::kSum).wait();
  EvalReport report;
  report.tokens = counts[0].item<std::int64_t>();
  report.sequences = counts[1].item<std::int64_t>();
  if (report.tokens > 0) report.loss = loss.item<double>() / static_cast<double>(report.tokens);
  return report;
}

EvalReport evaluate(Model& model, ZeroUnits& units, DataLoader& data) {
  return evaluate(model, units, data, num_eval_steps(data));
}

}  // namespace quatrain
