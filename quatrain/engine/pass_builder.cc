// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/pass_builder.h"

namespace quatrain {
namespace {

Pass pass_of(const Batch& batch, const ContextParallel& cp) {
  Pass pass;
  pass.tokens_BT = cp.own(batch.tokens_BT, 1);
  pass.positions_BT = cp.own(batch.positions_BT, 1);
  pass.documents_BS = batch.documents_BT;
  pass.seq = batch.positions_BT.size(1);
  pass.sample_ids_B = batch.sample_ids_B;
  if (batch.labels_BT.defined()) pass.labels_BT = cp.own(batch.labels_BT, 1);
  return pass;
}

}  // namespace

Pass training_pass(const Batch& batch, const StepContext& context, int microbatch,
                   const ContextParallel& cp) {
  Pass pass = pass_of(batch, cp);
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

Pass evaluation_pass(const Batch& batch, std::int64_t step, int microbatch,
                     const ContextParallel& cp) {
  Pass pass = pass_of(batch, cp);
  pass.step = step;
  pass.microbatch = microbatch;
  pass.mode = Mode::kEval;
  return pass;
}

}  // namespace quatrain
