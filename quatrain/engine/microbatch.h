// SPDX-License-Identifier: Apache-2.0
// One micro-batch on its way through the layers of one stage: forward, then the two halves of the
// backward, layer by layer or all at once. Keeps the stash, layer by layer, until its last use.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quatrain/nn/layer.h"

namespace quatrain {

// Sees the output of a layer's forward; the head's is its share of the loss.
using LayerObserver = std::function<void(int layer, const at::Tensor& output)>;

class Microbatch {
 public:
  // `layers` outlive it.
  Microbatch(std::span<const std::unique_ptr<Layer>> layers, Pass pass,
             LayerObserver observer = nullptr);
  Microbatch(const Microbatch&) = delete;
  Microbatch& operator=(const Microbatch&) = delete;

  // Each takes the next layer of its pass (forward: the first; backward: the last one first), or
  // all that are left when `layer` is absent. Throws BugError for another layer, and for one whose
  // earlier pass is not done. FLOPs are counted by pass.
  void forward(std::optional<int> layer = {});
  void backward_input(std::optional<int> layer = {});
  void backward_weight(std::optional<int> layer = {});
  // Both halves of a layer, one after the other; pieces of the weight half run while collectives of
  // the input half are in flight. Not after a backward_input() of its own.
  void backward(std::optional<int> layer = {});

  // Of stages that have a neighbour: what the first layer takes in place of tokens, ahead of the
  // forward, and what the last layer's input half takes, ahead of the backward; what the last
  // layer's forward and the first one's input half made, once. A stage without layers passes on
  // what it is given.
  void set_input(at::Tensor x_RD) { x_ = std::move(x_RD); }
  void set_output_grad(at::Tensor dy_RD) { dy_ = std::move(dy_RD); }
  at::Tensor take_output();
  at::Tensor take_input_grad();

  bool done() const { return weight_done_ == layers_.size(); }
  std::string progress() const;  // "forward 3/4, input half 0/4, weight half 0/4"
  const LossSums& sums() const { return sums_; }
  std::span<const Stash> stashes() const { return stashes_; }  // one a layer
  std::int64_t stash_bytes() const;                            // over all layers

 private:
  void forward_layer();
  void input_half(Filler& filler);
  void weight_half();

  std::span<const std::unique_ptr<Layer>> layers_;
  LayerObserver observer_;
  LossSums sums_;
  Pass pass_;
  std::vector<Stash> stashes_;
  at::Tensor x_;                  // what the next layer's forward takes; the first: tokens
  at::Tensor dy_;                 // what the next input half takes; the head's: nothing
  std::size_t forward_done_ = 0;  // layers, from the first
  std::size_t input_done_ = 0;    // layers, from the last
  std::size_t weight_done_ = 0;
};

}  // namespace quatrain
