// SPDX-License-Identifier: Apache-2.0
// The micro-batches of a step on their way through a rank's stages of a model: the computing half
// of training and evaluation. Owns the stash of every (stage, micro-batch), so peak memory is a
// property of the schedule.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "quatrain/engine/microbatch.h"
#include "quatrain/engine/row_runner.h"
#include "quatrain/model/model.h"

namespace quatrain {

// May change what a micro-batch carries through a stage, ahead of its forward.
using PassHook = std::function<void(int stage, Pass& pass)>;

class ModelStages {
 public:
  // `model` outlives it. The observer is told a layer's number in the whole model.
  explicit ModelStages(const Model& model, LayerObserver observer = nullptr,
                       PassHook on_pass = nullptr);

  // Forgets what there was; one pass a micro-batch.
  void begin(std::vector<Pass> passes);
  void clear() { microbatches_.clear(); }

  // F, I, W or B of one layer or of all of a stage. Throws BugError for a stage or micro-batch that
  // this rank does not have, and as Microbatch does.
  void compute(const Action& action);

  // As StageWork's.
  at::Tensor slot(const StageEnd& end);
  void give(const StageEnd& end, at::Tensor x);
  at::Tensor take(const StageEnd& end);

  // Those of the stages, by micro-batch.
  void for_each(const std::function<void(const Microbatch&)>& f) const;

 private:
  Microbatch& at(int stage, int microbatch);

  const Model& model_;
  LayerObserver observer_;
  PassHook on_pass_;
  std::vector<std::vector<std::unique_ptr<Microbatch>>> microbatches_;  // [micro-batch][own stage]
  std::vector<std::int64_t> rows_;  // of each micro-batch's residual stream, this rank's
};

}  // namespace quatrain
