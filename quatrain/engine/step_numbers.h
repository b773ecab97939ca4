// SPDX-License-Identifier: Apache-2.0
// The numbers of a step that all stages share: what its update depends on and what is reported. A
// stage's ranks agree on their part first; then the stages either all meet, or pass their parts on.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "quatrain/comm/communicator.h"
#include "quatrain/engine/zero_units.h"
#include "quatrain/nn/layer.h"

namespace quatrain {

class StepNumbers {
 public:
  // Of nothing; `parameters`: of the model, all of them.
  explicit StepNumbers(std::size_t parameters);
  // This rank's stages': the gradients that shards hold, by sorted `names`, and what its layers
  // saw. Collectives of the ranks of a stage.
  StepNumbers(ZeroUnits& units, const std::vector<std::string>& names, const LossSums& seen);

  double loss() const;  // sum over trained tokens
  double max_logit() const;
  double max_attention_lse() const;
  // sqrt of the sum over parameters in the order of their names: of all stages the same bits
  // however the model is cut.
  double grad_norm() const;

  // What other stages know as well.
  void add(const StepNumbers& other);
  void sum_over(Communicator& stages);
  // A message's contents: [parameters + 3], float64.
  const at::Tensor& flat() const { return flat_; }

 private:
  at::Tensor sums() const;  // squares and the loss
  at::Tensor maximums() const;
  at::Tensor flat_;
};

}  // namespace quatrain
