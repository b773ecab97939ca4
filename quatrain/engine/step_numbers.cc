// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/step_numbers.h"

#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include "quatrain/optim/optimizer.h"

namespace quatrain {

StepNumbers::StepNumbers(std::size_t parameters)
    : flat_(at::zeros({static_cast<std::int64_t>(parameters) + 3}, at::kDouble)) {}

StepNumbers::StepNumbers(ZeroUnits& units, const std::vector<std::string>& names,
                         const LossSums& seen)
    : StepNumbers(names.size()) {
  const auto count = static_cast<std::int64_t>(names.size());
  flat_.narrow(0, 0, count).copy_(grad_squares(units.shards(), units.holders(), names));
  flat_[count] = seen.loss;
  flat_[count + 1] = seen.max_logit;
  flat_[count + 2] = seen.max_attention_lse;
  units.readers().all_reduce(flat_.narrow(0, count, 1), ReduceOp::kSum).wait();
  units.readers().all_reduce(maximums(), ReduceOp::kMax).wait();
  units.tensor_ranks().all_reduce(maximums(), ReduceOp::kMax).wait();
}

at::Tensor StepNumbers::sums() const { return flat_.narrow(0, 0, flat_.numel() - 2); }
at::Tensor StepNumbers::maximums() const { return flat_.narrow(0, flat_.numel() - 2, 2); }

double StepNumbers::loss() const { return flat_[-3].item<double>(); }
double StepNumbers::max_logit() const { return flat_[-2].item<double>(); }
double StepNumbers::max_attention_lse() const { return flat_[-1].item<double>(); }
double StepNumbers::grad_norm() const {
  return norm_of_squares(flat_.narrow(0, 0, flat_.numel() - 3));
}

void StepNumbers::add(const StepNumbers& other) {
  sums().add_(other.sums());
  maximums().copy_(at::maximum(maximums(), other.maximums()));
}

void StepNumbers::sum_over(Communicator& stages) {
  stages.all_reduce(sums(), ReduceOp::kSum).wait();
  stages.all_reduce(maximums(), ReduceOp::kMax).wait();
}

}  // namespace quatrain
