// SPDX-License-Identifier: Apache-2.0
// One micro-batch on its way through the layers of one stage: forward, then the two halves of the
// backward, fused layer by layer or apart. Keeps the stash, layer by layer, until its last use.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "quatrain/nn/layer.h"

namespace quatrain {

class Microbatch {
 public:
  enum class State : std::uint8_t { kNew, kForwardDone, kInputDone, kDone };

  // `layers` outlive it.
  Microbatch(std::span<const std::unique_ptr<Layer>> layers, Pass pass);
  Microbatch(const Microbatch&) = delete;
  Microbatch& operator=(const Microbatch&) = delete;

  // Each throws BugError unless the state is the one before it. FLOPs are counted by pass.
  void forward();          // kNew -> kForwardDone
  void backward();         // kForwardDone -> kDone: both halves of each layer in turn
  void backward_input();   // kForwardDone -> kInputDone
  void backward_weight();  // kInputDone -> kDone

  State state() const { return state_; }
  const LossSums& sums() const { return sums_; }
  std::span<const Stash> stashes() const { return stashes_; }  // one a layer
  std::int64_t stash_bytes() const;                            // over all layers

 private:
  void advance(State from, State to);
  at::Tensor input_half(std::size_t layer, const at::Tensor& dy);
  void weight_half(std::size_t layer);

  std::span<const std::unique_ptr<Layer>> layers_;
  LossSums sums_;
  Pass pass_;
  std::vector<Stash> stashes_;
  State state_ = State::kNew;
};
std::string_view name(Microbatch::State state);  // "new", "forward done", ...

}  // namespace quatrain
