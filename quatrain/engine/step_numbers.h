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
  // How many there are: the same on every rank, whatever its stages hold.
  struct Size {
    std::size_t parameters = 0;            // of the model, all of them
    std::int64_t layers = 0, experts = 0;  // loads; no experts: none
  };
  explicit StepNumbers(const Size& size);  // of nothing
  // This rank's stages': the gradients that shards hold, by sorted `names`, and what its layers
  // saw. Collectives of the ranks of a stage.
  StepNumbers(ZeroUnits& units, const std::vector<std::string>& names, const LossSums& seen);
  static Size size_of(const ModelSpec& spec);

  double loss() const;  // sum over trained tokens
  double max_logit() const;
  double max_attention_lse() const;
  RouterSums router() const;
  // sqrt of the sum over parameters in the order of their names: of all stages the same bits
  // however the model is cut.
  double grad_norm() const;

  // What other stages know as well.
  void add(const StepNumbers& other);
  void sum_over(Communicator& stages);
  std::int64_t num_sums() const { return sums().numel(); }  // what sum_over() adds up
  // A message's contents, float64.
  const at::Tensor& flat() const { return flat_; }

 private:
  at::Tensor squares() const;
  at::Tensor seen() const;  // sums of what layers saw
  at::Tensor sums() const;  // both
  at::Tensor maximums() const;

  Size size_;
  at::Tensor flat_;
};

}  // namespace quatrain
