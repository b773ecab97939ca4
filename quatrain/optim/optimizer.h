// SPDX-License-Identifier: Apache-2.0
// Updates of units, whole or sharded: masters and moments are flat buffers beside a shard's values.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quatrain/comm/communicator.h"
#include "quatrain/nn/unit_shard.h"

namespace quatrain {

struct OptimizerOptions {
  std::string name = "adamw";  // adamw | sgd
  double lr = 3e-4;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;  // on parameters with info.decay
  double momentum = 0.0;      // sgd
  bool nesterov = false;
  double max_norm = 1.0;  // of the global gradient; 0: no clipping
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Allocates masters (when the compute dtype is not wide) and zeroed moments.
  virtual void allocate() = 0;
  // value, master, moments (=) from grad. `grad_scale` multiplies every gradient (clipping).
  virtual void step(double lr, double grad_scale) = 0;
  // Copies all that step() reads and changes, gradients too; puts the last copy back.
  virtual void keep() = 0;
  virtual void restore() = 0;
  virtual std::int64_t steps_done() const = 0;
  virtual void set_steps_done(std::int64_t steps) = 0;
  // Named state of this rank's rows of a parameter, for checkpoints: ("exp_avg", view), ...; empty
  // when it has none.
  virtual std::vector<std::pair<std::string, at::Tensor>> state(const Param& param) = 0;
};
// Units outlive the optimizer; their storage stays where it is. Throws ConfigError for an unknown
// name.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::span<const UnitShard> shards);
// Of whole, allocated units.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          const std::vector<ParamUnit*>& units);

// Of each parameter's gradient the sum of squares (float64), in the order of `names`, sorted; zero
// for those that these shards do not hold. `owners`: the ranks that hold pieces of these units
// between them (one rank: they are whole), replicas among them counted once; called by all of
// them.
at::Tensor grad_squares(std::span<const UnitShard> shards, Communicator& owners,
                        std::span<const std::string> names);
// sqrt of their sum in that order: the same bits for every cut of the model into stages.
double norm_of_squares(const at::Tensor& squares);
// Both, where all owners hold pieces of the same parameters.
double global_grad_norm(std::span<const UnitShard> shards, Communicator& owners);
// What gradients are multiplied with: min(1, max_norm / (norm + 1e-6)) as torch's
// clip_grad_norm_; 1 when max_norm is 0.
double clip_scale(double norm, double max_norm);

}  // namespace quatrain
