// SPDX-License-Identifier: Apache-2.0
// Held-out loss: sums over tokens first, one division at the end, so that neither the size of
// micro-batches nor the number of ranks weighs in.
#include <ATen/ops/tensor.h>

#include "quatrain/engine/executor.h"
#include "quatrain/engine/pass_builder.h"

namespace quatrain {
namespace {

std::int64_t sequences_in(const Batch& batch) {
  return batch.sample_ids_B.ge(0).sum().item<std::int64_t>();
}

}  // namespace

EvalReport evaluate(Model& model, DataLoader& data, std::int64_t num_steps, Communicator& world) {
  LossSums sums;
  std::int64_t sequences = 0;
  for (std::int64_t step = 0; step < num_steps; ++step) {
    for (int m = 0; m < data.num_microbatches(); ++m) {
      const Batch& batch = data.microbatch(step, m);
      Pass pass = evaluation_pass(batch, step, m);
      pass.sums = &sums;
      std::vector<Stash> stashes;
      forward_all(model, pass.tokens_BT, pass, stashes);
      sequences += sequences_in(batch);
    }
  }
  const at::Tensor loss = at::tensor({sums.loss}, at::TensorOptions(at::kDouble));
  const at::Tensor counts = at::tensor({sums.tokens, sequences}, at::TensorOptions(at::kLong));
  world.all_reduce(loss, ReduceOp::kSum).wait();
  world.all_reduce(counts, ReduceOp::kSum).wait();
  EvalReport report;
  report.tokens = counts[0].item<std::int64_t>();
  report.sequences = counts[1].item<std::int64_t>();
  if (report.tokens > 0) report.loss = loss.item<double>() / static_cast<double>(report.tokens);
  return report;
}

EvalReport evaluate(Model& model, DataLoader& data, Communicator& world) {
  return evaluate(model, data, num_eval_steps(data), world);
}

}  // namespace quatrain
