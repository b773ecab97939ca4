// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/microbatch.h"

#include <utility>

#include "quatrain/kernels/check.h"
#include "quatrain/kernels/flops.h"

namespace quatrain {

std::string_view name(Microbatch::State state) {
  switch (state) {
    case Microbatch::State::kNew:
      return "new";
    case Microbatch::State::kForwardDone:
      return "forward done";
    case Microbatch::State::kInputDone:
      return "input half done";
    case Microbatch::State::kDone:
      return "done";
  }
  return "?";
}

Microbatch::Microbatch(std::span<const std::unique_ptr<Layer>> layers, Pass pass)
    : layers_(layers), pass_(std::move(pass)), stashes_(layers.size()) {
  pass_.sums = &sums_;
}

void Microbatch::advance(State from, State to) {
  CHECK(state_ == from, "micro-batch {} is at \"{}\", not at \"{}\"", pass_.microbatch,
        name(state_), name(from));
  state_ = to;
}

void Microbatch::forward() {
  advance(State::kNew, State::kForwardDone);
  const ScopedPass pass(PassKind::kForward);
  at::Tensor x = pass_.tokens_BT;
  for (std::size_t i = 0; i < layers_.size(); ++i) x = layers_[i]->forward(x, pass_, stashes_[i]);
}

at::Tensor Microbatch::input_half(std::size_t layer, const at::Tensor& dy) {
  const ScopedPass pass(PassKind::kBackwardInput);
  NoFiller filler;
  return layers_[layer]->backward_input(dy, pass_, stashes_[layer], filler);
}

void Microbatch::weight_half(std::size_t layer) {
  const ScopedPass pass(PassKind::kBackwardWeight);
  layers_[layer]->backward_weight(pass_, stashes_[layer]);
  CHECK(stashes_[layer].empty(), "layer {} keeps something after its weight half", layer);
}

void Microbatch::backward() {
  advance(State::kForwardDone, State::kDone);
  at::Tensor dy;
  for (std::size_t i = layers_.size(); i-- > 0;) {
    dy = input_half(i, dy);
    weight_half(i);
  }
}

void Microbatch::backward_input() {
  advance(State::kForwardDone, State::kInputDone);
  at::Tensor dy;
  for (std::size_t i = layers_.size(); i-- > 0;) dy = input_half(i, dy);
}

void Microbatch::backward_weight() {
  advance(State::kInputDone, State::kDone);
  for (std::size_t i = layers_.size(); i-- > 0;) weight_half(i);
}

std::int64_t Microbatch::stash_bytes() const {
  std::int64_t sum = 0;
  for (const Stash& stash : stashes_) sum += stash.bytes();
  return sum;
}

}  // namespace quatrain
