// SPDX-License-Identifier: Apache-2.0
// For tests: whole models once more, in plain ATen operations that autograd follows: experts as a
// loop over tokens, latent attention as its formulas are printed. Written without a look at nn/.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "quatrain/model/model.h"
#include "quatrain/nn/layer.h"
#include "quatrain/nn/testing.h"

namespace quatrain {

class ReferenceModel {
 public:
  ReferenceModel(Model& model, const Pass& pass);
  at::Tensor logits();
  at::Tensor loss();  // as the model differentiates it, routers' losses with it

  testing::Leaves leaves;
  at::Tensor router_losses;  // of the last logits(), unscaled; undefined without experts
  at::Tensor loads_LE;       // and choices of each expert

 private:
  at::Tensor norm(const at::Tensor& x, const std::string& name);
  at::Tensor project(const at::Tensor& x, const std::string& name);
  at::Tensor attention(const at::Tensor& x, const std::string& in, std::int64_t layer);
  at::Tensor rope_neighbours(const at::Tensor& x_BTHd);
  at::Tensor latent_attention(const at::Tensor& x, const std::string& in);
  at::Tensor gated(const at::Tensor& x, const std::string& in);
  // The best keys of a row, ties by index.
  static std::vector<std::int64_t> best(const at::Tensor& keys_E, std::int64_t count);
  std::vector<std::int64_t> choose(const at::Tensor& scores_E, const std::string& in);
  at::Tensor experts(const at::Tensor& x_BTD, const std::string& in, std::int64_t layer);
  at::Tensor block(const at::Tensor& x, const std::string& in, std::int64_t layer);

  const ModelSpec& spec_;
  const Pass& pass_;
};

}  // namespace quatrain
