// SPDX-License-Identifier: Apache-2.0
// Balance of experts without a loss (Wang et al., arXiv:2408.15664; DeepSeek-V3,
// arXiv:2412.19437, section 2.1.2): after a step the bias of the choice goes up by one rate where
// an expert got less than the mean of the global batch, and down where it got more.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "quatrain/engine/zero_units.h"

namespace quatrain {

class ExpertBias {
 public:
  // `units` outlives it. 0: biases stay.
  ExpertBias(ZeroUnits& units, double rate) : units_(units), rate_(rate) {}

  // `loads_LE`: choices in the step, of all ranks. Moves the biases of this rank's shards; a bias's
  // mean stays. Where values are narrower than their wide type, what rounding cut off is kept for
  // the next time.
  void update(const at::Tensor& loads_LE);

 private:
  struct Bias {
    at::Tensor value;  // of a shard's part, a view
    at::Tensor rest;   // wide: what the value lacks
    std::int64_t layer, first;
  };
  void find();

  ZeroUnits& units_;
  double rate_;
  bool found_ = false;
  std::vector<Bias> biases_;
};

}  // namespace quatrain
