// SPDX-License-Identifier: Apache-2.0
// The optimizers by name, and what is done to the gradient as a whole.
#include "quatrain/optim/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "quatrain/base/error.h"
#include "quatrain/kernels/pointwise.h"
#include "quatrain/optim/flat_optimizer.h"

namespace quatrain {
namespace {

class AdamW final : public FlatOptimizer {
 public:
  AdamW(const OptimizerOptions& options, std::vector<ParamUnit*> units)
      : FlatOptimizer(std::move(units), {"exp_avg", "exp_avg_sq"}), options_(options) {}

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
  Sgd(const OptimizerOptions& options, std::vector<ParamUnit*> units)
      : FlatOptimizer(std::move(units), moment_names(options)), options_(options) {}

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
                                          std::vector<ParamUnit*> units) {
  if (options.name == "adamw") return std::make_unique<AdamW>(options, std::move(units));
  if (options.name == "sgd") {
    if (options.nesterov && options.momentum <= 0.0) {
      throw ConfigError("optimizer.nesterov needs optimizer.momentum above 0, such as 0.9");
    }
    return std::make_unique<Sgd>(options, std::move(units));
  }
  throw ConfigError(
      fmt::format("there is no optimizer \"{}\"; there are: adamw sgd", options.name));
}

double global_grad_norm(std::span<ParamUnit* const> units) {
  std::vector<const Param*> params;
  for (ParamUnit* unit : units) {
    for (const Param& param : unit->params()) {
      if (param.info.trainable) params.push_back(&param);
    }
  }
  std::sort(params.begin(), params.end(),
            [](const Param* a, const Param* b) { return a->info.name < b->info.name; });
  double sum = 0.0;
  for (const Param* param : params) sum += kernels::sum_squares(param->grad);
  return std::sqrt(sum);
}

double clip_scale(double norm, double max_norm) {
  if (max_norm <= 0.0) return 1.0;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace quatrain
