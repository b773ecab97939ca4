// SPDX-License-Identifier: Apache-2.0
// What the optimizers share: flat state beside each shard's flat gradients, cut into runs of
// neighbouring parameters with equal decay, so that an update is a few passes over long spans.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "quatrain/optim/optimizer.h"

namespace quatrain {

class FlatOptimizer : public Optimizer {
 public:
  // `moments`: names of the state beside the master, in checkpoint terms.
  FlatOptimizer(std::span<const UnitShard> shards, std::vector<std::string> moments);

  void allocate() final;
  void step(double lr, double grad_scale) final;
  void keep() final;
  void restore() final;
  std::int64_t steps_done() const final { return steps_done_; }
  void set_steps_done(std::int64_t steps) final { steps_done_ = steps; }
  std::vector<std::pair<std::string, at::Tensor>> state(const Param& param) final;

 protected:
  // A run's spans. `master` is `value` itself when the compute dtype is wide.
  struct Span {
    at::Tensor value, master, grad;
    std::vector<at::Tensor> moments;
    bool decay;
  };
  virtual void update(Span& span, double lr, double grad_scale) = 0;  // at steps_done() >= 1

 private:
  struct Run {
    std::int64_t value_begin;
    std::int64_t grad_begin;
    std::int64_t numel;
    bool decay;
  };
  // Masters and moments have the layout of the shard's gradient: frozen parameters have none.
  struct ShardState {
    UnitShard shard;
    std::vector<Run> runs;
    at::Tensor master;  // undefined when the compute dtype is wide
    std::vector<at::Tensor> moments;
    std::vector<at::Tensor> kept;  // copies of all_of()
  };
  static std::vector<Run> runs_of(const UnitShard& shard);
  Span span(ShardState& state, const Run& run) const;
  static std::vector<at::Tensor> all_of(const ShardState& state);

  std::vector<ShardState> shards_;
  std::vector<std::string> moment_names_;
  std::int64_t steps_done_ = 0;
  std::int64_t kept_steps_done_ = 0;
};

}  // namespace quatrain
