// SPDX-License-Identifier: Apache-2.0
// The wrapper of full recomputation. After the input half the stash holds what the weight half of
// the wrapped layer needs, and nothing else.
#include "quatrain/nn/recompute.h"

namespace quatrain {
namespace {

constexpr std::string_view kX = "block.x";

}  // namespace

at::Tensor Recomputed::forward(const at::Tensor& x_BTD, const Pass& pass, Stash& stash) {
  Stash nothing = Stash::discarding();
  at::Tensor y_BTD = inner_->forward(x_BTD, pass, nothing);
  if (pass.mode == Mode::kTrain) stash.save(x_BTD, Until::kInput, kX);
  return y_BTD;
}

at::Tensor Recomputed::backward_input(const at::Tensor& dy_BTD, const Pass& pass, Stash& stash,
                                      Filler& filler) {
  Pass again = pass;
  again.sums = nullptr;  // seen already
  again.rerun = true;
  inner_->forward(stash.take(kX), again, stash);
  return inner_->backward_input(dy_BTD, pass, stash, filler);
}

void Recomputed::backward_weight(const Pass& pass, Stash& stash) {
  inner_->backward_weight(pass, stash);
}

}  // namespace quatrain
