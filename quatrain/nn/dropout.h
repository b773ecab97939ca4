// SPDX-License-Identifier: Apache-2.0
// Dropout of the residual stream: masks are functions of (seed, step, site, sample, position,
// column), so no mask is stored and every geometry and recomputation draws the same.
// Shapes: R rows of the residual stream, D width.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "quatrain/nn/layer.h"
#include "quatrain/nn/tensor_parallel.h"

namespace quatrain {

class Dropout {
 public:
  // `rows`: which rows of the micro-batch are dropped (borrowed).
  Dropout(double p, std::int64_t site, const TensorParallel& rows)
      : p_(p), site_(site), rows_(rows) {}
  static constexpr std::int64_t kEmbeddingSite = 0;
  static constexpr std::int64_t attention_site(std::int64_t layer) { return 1 + 2 * layer; }
  static constexpr std::int64_t mlp_site(std::int64_t layer) { return 2 + 2 * layer; }

  bool active(const Pass& pass) const { return p_ > 0.0 && pass.mode == Mode::kTrain; }
  void apply_(at::Tensor& x_RD, const Pass& pass) const;  // in place; nothing when inactive
  // The gradient before the dropout: a masked copy, or dy itself when inactive.
  at::Tensor backward(const at::Tensor& dy_RD, const Pass& pass) const;

 private:
  double p_;
  std::int64_t site_;
  const TensorParallel& rows_;
};

}  // namespace quatrain
