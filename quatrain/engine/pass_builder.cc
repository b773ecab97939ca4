// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/pass_builder.h"

namespace quatrain {
namespace {

Pass pass_of(const Batch& batch) {
  Pass pass;
  pass.tokens_BT = batch.tokens_BT;
  pass.positions_BT = batch.positions_BT;
  pass.documents_BT = batch.documents_BT;
  pass.sample_ids_B = batch.sample_ids_B;
  pass.labels_BT = batch.labels_BT;
  return pass;
}

}  // namespace

Pass training_pass(const Batch& batch, const StepContext& context, int microbatch) {
  Pass pass = pass_of(batch);
  pass.step = context.step;
  pass.microbatch = microbatch;
  pass.loss_scale = context.loss_scale;
  pass.z_loss = context.z_loss;
  pass.router_z_loss = context.router_z_loss;
  pass.router_loads_LE = context.router_loads_LE;
  pass.mode = Mode::kTrain;
  pass.seed = context.seed;
  pass.grads = context.grads;
  return pass;
}

Pass evaluation_pass(const Batch& batch, std::int64_t step, int microbatch) {
  Pass pass = pass_of(batch);
  pass.step = step;
  pass.microbatch = microbatch;
  pass.mode = Mode::kEval;
  return pass;
}

}  // namespace quatrain
