// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/microbatch.h"

#include <fmt/format.h>

#include <utility>

#include "quatrain/kernels/check.h"
#include "quatrain/kernels/flops.h"

namespace quatrain {
namespace {

// Runs `next` until `done` counts `count` layers more, or all of them.
template <class F>
void advance(std::optional<int> layer, const std::size_t& done, std::size_t layers, const F& next) {
  if (layer) return next();
  while (done < layers) next();
}

// Of a fused backward: one piece of the layer's own weight half under each collective.
class OwnFiller final : public Filler {
 public:
  void fill(const OwnPiece& own) override {
    const ScopedPass pass(PassKind::kBackwardWeight);
    own();
  }
};

}  // namespace

Microbatch::Microbatch(std::span<const std::unique_ptr<Layer>> layers, Pass pass,
                       LayerObserver observer)
    : layers_(layers),
      observer_(std::move(observer)),
      pass_(std::move(pass)),
      stashes_(layers.size(), pass_.mode == Mode::kTrain ? Stash() : Stash::discarding()) {
  pass_.sums = &sums_;
}

std::string Microbatch::progress() const {
  const std::size_t n = layers_.size();
  return fmt::format("forward {}/{}, input half {}/{}, weight half {}/{}", forward_done_, n,
                     input_done_, n, weight_done_, n);
}

void Microbatch::forward(std::optional<int> layer) {
  const bool fits = (forward_done_ < layers_.size() || layers_.empty()) &&
                    (!layer || static_cast<std::size_t>(*layer) == forward_done_);
  CHECK(fits, "micro-batch {}: no forward of layer {} now: {}", pass_.microbatch, layer.value_or(0),
        progress());
  advance(layer, forward_done_, layers_.size(), [this] { forward_layer(); });
}

void Microbatch::backward_input(std::optional<int> layer) {
  const bool fits =
      forward_done_ == layers_.size() && (input_done_ < layers_.size() || layers_.empty()) &&
      (!layer || static_cast<std::size_t>(*layer) == layers_.size() - 1 - input_done_);
  CHECK(fits, "micro-batch {}: no input half of layer {} now: {}", pass_.microbatch,
        layer.value_or(static_cast<int>(layers_.size()) - 1), progress());
  CHECK(!pass_.fused_backward, "micro-batch {}: its backward began fused", pass_.microbatch);
  NoFiller filler;
  advance(layer, input_done_, layers_.size(), [&] { input_half(filler); });
}

void Microbatch::backward_weight(std::optional<int> layer) {
  const std::size_t ready = layer ? weight_done_ + 1 : layers_.size();
  const bool fits =
      (weight_done_ < layers_.size() || layers_.empty()) && input_done_ >= ready &&
      (!layer || static_cast<std::size_t>(*layer) == layers_.size() - 1 - weight_done_);
  CHECK(fits, "micro-batch {}: no weight half of layer {} now: {}", pass_.microbatch,
        layer.value_or(static_cast<int>(layers_.size()) - 1), progress());
  advance(layer, weight_done_, layers_.size(), [this] { weight_half(); });
}

void Microbatch::backward(std::optional<int> layer) {
  const bool fits =
      forward_done_ == layers_.size() && (input_done_ < layers_.size() || layers_.empty()) &&
      weight_done_ == input_done_ &&
      (!layer || static_cast<std::size_t>(*layer) == layers_.size() - 1 - input_done_);
  CHECK(fits, "micro-batch {}: no whole backward of layer {} now: {}", pass_.microbatch,
        layer.value_or(static_cast<int>(layers_.size()) - 1), progress());
  pass_.fused_backward = true;
  advance(layer, input_done_, layers_.size(), [this] {
    OwnFiller filler;
    input_half(filler);
    weight_half();
  });
}

void Microbatch::forward_layer() {
  const ScopedPass pass(PassKind::kForward);
  const at::Tensor x = x_.defined() ? std::move(x_) : pass_.tokens_BT;
  x_ = layers_[forward_done_]->forward(x, pass_, stashes_[forward_done_]);
  if (observer_) observer_(static_cast<int>(forward_done_), x_);
  ++forward_done_;
  if (x_.dim() == 0) x_.reset();  // the loss, which is in the sums
}

void Microbatch::input_half(Filler& filler) {
  const ScopedPass pass(PassKind::kBackwardInput);
  const std::size_t layer = layers_.size() - 1 - input_done_;
  const at::Tensor dy = std::move(dy_);
  dy_ = layers_[layer]->backward_input(dy, pass_, stashes_[layer], filler);
  ++input_done_;
}

at::Tensor Microbatch::take_output() {
  CHECK(forward_done_ == layers_.size() && x_.defined(), "micro-batch {}: no output to take: {}",
        pass_.microbatch, progress());
  return std::move(x_);
}

at::Tensor Microbatch::take_input_grad() {
  CHECK(input_done_ == layers_.size() && dy_.defined(),
        "micro-batch {}: no input gradient to take: {}", pass_.microbatch, progress());
  return std::move(dy_);
}

void Microbatch::weight_half() {
  const ScopedPass pass(PassKind::kBackwardWeight);
  const std::size_t layer = layers_.size() - 1 - weight_done_;
  layers_[layer]->backward_weight(pass_, stashes_[layer]);
  CHECK(stashes_[layer].empty(), "layer {} keeps something after its weight half", layer);
  ++weight_done_;
}

std::int64_t Microbatch::stash_bytes() const {
  std::int64_t sum = 0;
  for (const Stash& stash : stashes_) sum += stash.bytes();
  return sum;
}

}  // namespace quatrain
