// SPDX-License-Identifier: Apache-2.0
// The optimizers by name, and what is done to the gradient as a whole.
#include "quatrain/optim/optimizer.h"

#include <fmt/format.h>

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "quatrain/base/error.h"
#include "quatrain/kernels/check.h"
#include "quatrain/kernels/pointwise.h"
#include "quatrain/optim/flat_optimizer.h"

namespace quatrain {
namespace {

class AdamW final : public FlatOptimizer {
 public:
  AdamW(const OptimizerOptions& options, std::span<const UnitShard> shards)
      : FlatOptimizer(shards, {"exp_avg", "exp_avg_sq"}), options_(options) {}

 private:
  void update(Span& span, double lr, double grad_scale) override {
    const double decay = span.decay ? options_.weight_decay : 0.0;
    const kernels::AdamWStep step{.lr = lr,
                                  .beta1 = options_.beta1,
                                  .beta2 = options_.beta2,
                                  .eps = options_.eps,
                                  .weight_decay = decay,
                                  .step = steps_done(),
                                  .grad_scale = grad_scale};
    kernels::adamw_(span.value, span.master, span.grad, span.moments[0], span.moments[1], step);
  }
  OptimizerOptions options_;
};

// Weight decay is added to the gradient, after clipping, as torch.optim.SGD does.
class Sgd final : public FlatOptimizer {
 public:
  Sgd(const OptimizerOptions& options, std::span<const UnitShard> shards)
      : FlatOptimizer(shards, moment_names(options)), options_(options) {}

 private:
  static std::vector<std::string> moment_names(const OptimizerOptions& options) {
    if (options.momentum > 0.0) return {"momentum_buffer"};
    return {};
  }
  void update(Span& span, double lr, double grad_scale) override {
    const kernels::SgdStep step{.lr = lr,
                                .momentum = options_.momentum,
                                .weight_decay = span.decay ? options_.weight_decay : 0.0,
                                .nesterov = options_.nesterov,
                                .first = steps_done() == 1,
                                .grad_scale = grad_scale};
    at::Tensor momentum = span.moments.empty() ? at::Tensor() : span.moments[0];
    kernels::sgd_(span.value, span.master, span.grad, momentum, step);
  }
  OptimizerOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::span<const UnitShard> shards) {
  if (options.name == "adamw") return std::make_unique<AdamW>(options, shards);
  if (options.name == "sgd") {
    if (options.nesterov && options.momentum <= 0.0) {
      throw ConfigError("optimizer.nesterov needs optimizer.momentum above 0, such as 0.9");
    }
    return std::make_unique<Sgd>(options, shards);
  }
  throw ConfigError(
      fmt::format("there is no optimizer \"{}\"; there are: adamw sgd", options.name));
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          const std::vector<ParamUnit*>& units) {
  std::vector<UnitShard> shards;
  for (ParamUnit* unit : units) shards.push_back(whole(*unit));
  return make_optimizer(options, std::span<const UnitShard>(shards));
}

double global_grad_norm(std::span<const UnitShard> shards, Communicator& owners) {
  std::vector<std::string> names;
  for (const UnitShard& shard : shards) {
    for (const Param& param : shard.unit->params()) {
      if (param.info.trainable) names.push_back(param.info.name);
    }
  }
  std::sort(names.begin(), names.end());
  return norm_of_squares(grad_squares(shards, owners, names));
}

at::Tensor grad_squares(std::span<const UnitShard> shards, Communicator& owners,
                        std::span<const std::string> names) {
  // By name, so that every rank has the same list whatever it holds a part of.
  const at::Tensor squares = at::zeros({static_cast<std::int64_t>(names.size())}, at::kDouble);
  auto by_name = squares.accessor<double, 1>();
  for (const UnitShard& shard : shards) {
    for (const ShardPart& part : parts(shard)) {
      const ParameterInfo& info = part.param->info;
      if (!info.trainable || !part.param->counted) continue;
      const auto name = std::lower_bound(names.begin(), names.end(), info.name);
      CHECK(name != names.end() && *name == info.name, "{} is not in the list of names", info.name);
      by_name[name - names.begin()] +=
          kernels::sum_squares(shard.grad.narrow(0, part.grad_begin, part.numel));
    }
  }
  owners.all_reduce(squares, ReduceOp::kSum).wait();
  return squares;
}

double norm_of_squares(const at::Tensor& squares) {
  const auto of_parameters = squares.accessor<double, 1>();
  double sum = 0.0;
  for (std::int64_t i = 0; i < squares.numel(); ++i) sum += of_parameters[i];
  return std::sqrt(sum);
}

double clip_scale(double norm, double max_norm) {
  if (max_norm <= 0.0) return 1.0;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace quatrain
