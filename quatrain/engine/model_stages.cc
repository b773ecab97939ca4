// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/model_stages.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "quatrain/kernels/check.h"
#include "quatrain/kernels/memory.h"

namespace quatrain {

ModelStages::ModelStages(const Model& model, LayerObserver observer, PassHook on_pass)
    : model_(model), observer_(std::move(observer)), on_pass_(std::move(on_pass)) {}

void ModelStages::begin(std::vector<Pass> passes) {
  microbatches_.clear();
  rows_.clear();
  for (const Pass& pass : passes) {
    rows_.push_back(model_.tensor_parallel().own(pass.positions_BT.numel()).size());
    auto& stages = microbatches_.emplace_back();
    for (std::size_t i = 0; i < model_.stages().size(); ++i) {
      LayerObserver observer;
      if (observer_) {
        observer = [this, first = model_.stages()[i].begin](int layer, const at::Tensor& output) {
          observer_(first + layer, output);
        };
      }
      Pass own = pass;
      if (on_pass_) on_pass_(model_.stages()[i].stage, own);
      stages.push_back(
          std::make_unique<Microbatch>(model_.layers_of(i), std::move(own), std::move(observer)));
    }
  }
}

Microbatch& ModelStages::at(int stage, int microbatch) {
  const auto stages = model_.stages();
  const auto own = std::find_if(stages.begin(), stages.end(),
                                [stage](const StageLayers& s) { return s.stage == stage; });
  CHECK(own != stages.end(), "stage {} is not of this rank", stage);
  const auto& of_stages = microbatches_.at(static_cast<std::size_t>(microbatch));
  return *of_stages[static_cast<std::size_t>(own - stages.begin())];
}

void ModelStages::compute(const Action& action) {
  const int index = action.microbatch.value_or(-1);
  CHECK(index >= 0 && index < static_cast<int>(microbatches_.size()),
        "{} names no micro-batch of this step", to_string(action));
  Microbatch& microbatch = at(action.stage, index);
  if (action.kind == ActionKind::kForward) microbatch.forward(action.unit);
  if (action.kind == ActionKind::kBackwardInput) microbatch.backward_input(action.unit);
  if (action.kind == ActionKind::kBackwardWeight) microbatch.backward_weight(action.unit);
  if (action.kind == ActionKind::kBackward) microbatch.backward(action.unit);
}

at::Tensor ModelStages::slot(const StageEnd& end) {
  const ScopedMemoryCategory category(MemoryCategory::kBuffers);
  return at::empty({rows_.at(static_cast<std::size_t>(end.microbatch)), model_.spec().hidden},
                   at::TensorOptions(model_.dtype()).device(model_.device()));
}

void ModelStages::give(const StageEnd& end, at::Tensor x) {
  Microbatch& microbatch = at(end.stage, end.microbatch);
  if (end.forward) {
    microbatch.set_input(std::move(x));
  } else {
    microbatch.set_output_grad(std::move(x));
  }
}

at::Tensor ModelStages::take(const StageEnd& end) {
  Microbatch& microbatch = at(end.stage, end.microbatch);
  return end.forward ? microbatch.take_output() : microbatch.take_input_grad();
}

void ModelStages::for_each(const std::function<void(const Microbatch&)>& f) const {
  for (const auto& stages : microbatches_) {
    for (const auto& microbatch : stages) f(*microbatch);
  }
}

}  // namespace quatrain
