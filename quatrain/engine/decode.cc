// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/decode.h"

#include <ATen/ops/empty.h>

#include <vector>

#include "quatrain/nn/layer_row.h"

namespace quatrain {
namespace {

Action message(int stage, ActionKind kind) {
  Action action;
  action.stage = stage;
  action.kind = kind;
  return action;
}

}  // namespace

at::Tensor decode_forward(Model& model, Pipeline& pipeline, Communicator& ranks, const Pass& pass) {
  const auto options = at::TensorOptions(model.dtype()).device(model.device());
  const std::int64_t rows = model.tensor_parallel().own(pass.positions_BT.numel()).size();
  at::Tensor x = pass.tokens_BT;
  for (std::size_t i = 0; i < model.stages().size(); ++i) {
    const int stage = model.stages()[i].stage;
    if (stage > 0 && !pipeline.holds(stage - 1)) {
      x = at::empty({rows, model.spec().hidden}, options);
      pipeline.recv(message(stage, ActionKind::kRecvForward), x).wait();
    }
    std::vector<Stash> stashes;
    x = forward_row(model.layers_of(i), x, pass, stashes);
    if (pipeline.is_last(stage) || pipeline.holds(stage + 1)) continue;
    pipeline.send(message(stage, ActionKind::kSendForward), x).wait();
  }
  if (ranks.size() == 1) return x;
  const int last = pipeline.rank_of_stage().back();
  if (ranks.rank() != last) {
    x = at::empty({pass.tokens_BT.size(0), model.spec().vocab}, options);
  }
  ranks.broadcast(x, last).wait();
  return x;
}

}  // namespace quatrain
