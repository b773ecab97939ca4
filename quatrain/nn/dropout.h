// SPDX-License-Identifier: Apache-2.0
// Dropout of the residual stream and jitter of what routers read: masks and factors are functions
// of (seed, step, site, sample, position, column), so none is stored and every geometry and
// recomputation draws the same.
// Shapes: R rows of the residual stream, N of the micro-batch, D width.
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

// Router inputs times numbers in [1 - eps, 1 + eps), in training alone (Switch,
// arXiv:2101.03961, section 2.2).
class RouterJitter {
 public:
  // `rows`: how the residual stream's rows are cut (borrowed).
  RouterJitter(double eps, std::int64_t layer, const TensorParallel& rows)
      : eps_(eps), site_(kFirstSite + layer), rows_(rows) {}

  bool active(const Pass& pass) const { return eps_ > 0.0 && pass.mode == Mode::kTrain; }
  // x (wide) as the router reads it: a copy, or x itself when inactive.
  at::Tensor read(const at::Tensor& x_ND, const Pass& pass) const;
  // Of the residual stream's rows the gradient before it, in place.
  void backward_(at::Tensor& dx_RD, const Pass& pass) const;

 private:
  static constexpr std::int64_t kFirstSite = std::int64_t{1} << 31U;  // beyond those of Dropout

  double eps_;
  std::int64_t site_;
  const TensorParallel& rows_;
};

}  // namespace quatrain
