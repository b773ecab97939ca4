// SPDX-License-Identifier: Apache-2.0
// One flat tensor: squares by parameter, the loss, routers' sums and loads, two maximums.
#include "quatrain/engine/step_numbers.h"

#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include "quatrain/kernels/check.h"
#include "quatrain/optim/optimizer.h"

namespace quatrain {
namespace {

// Places among what layers saw.
enum Seen : std::int64_t { kLoss, kBalance, kRouterZ, kEntropy, kRouterRows, kDropped, kLoads };
constexpr std::int64_t kMaximums = 2;

// Of both views of a stage's ranks.
at::Tensor stage_squares(ZeroUnits& units, const std::vector<std::string>& names) {
  std::vector<UnitShard> dense, experts;
  for (const UnitShard& shard : units.shards()) {
    (shard.unit->of_experts() ? experts : dense).push_back(shard);
  }
  const at::Tensor squares = grad_squares(dense, units.holders(), names);
  if (units.has_experts()) squares.add_(grad_squares(experts, units.expert_holders(), names));
  return squares;
}

}  // namespace

StepNumbers::StepNumbers(const Size& size) : size_(size) {
  const std::int64_t loads = size.experts > 0 ? size.layers * size.experts : 0;
  flat_ = at::zeros({static_cast<std::int64_t>(size.parameters) + kLoads + loads + kMaximums},
                    at::kDouble);
}

StepNumbers::Size StepNumbers::size_of(const ModelSpec& spec) {
  return {parameters(spec).size(), spec.layers, spec.experts ? spec.experts->num_experts : 0};
}

StepNumbers::StepNumbers(ZeroUnits& units, const std::vector<std::string>& names,
                         const LossSums& seen_here)
    : StepNumbers(size_of(units.model().spec())) {
  CHECK(names.size() == size_.parameters, "{} names of {} parameters", names.size(),
        size_.parameters);
  squares().copy_(stage_squares(units, names));
  const RouterSums& router = seen_here.router;
  seen()[kLoss] = seen_here.loss;
  seen()[kBalance] = router.balance;
  seen()[kRouterZ] = router.z;
  seen()[kEntropy] = router.entropy;
  seen()[kRouterRows] = static_cast<double>(router.rows);
  seen()[kDropped] = static_cast<double>(router.dropped);
  if (router.loads_LE.defined()) {
    seen().narrow(0, kLoads, router.loads_LE.numel()).copy_(router.loads_LE.view({-1}));
  }
  maximums()[0] = seen_here.max_logit;
  maximums()[1] = seen_here.max_attention_lse;
  units.seers().all_reduce(seen(), ReduceOp::kSum).wait();
  units.seers().all_reduce(maximums(), ReduceOp::kMax).wait();
  units.tensor_ranks().all_reduce(maximums(), ReduceOp::kMax).wait();
}

at::Tensor StepNumbers::squares() const {
  return flat_.narrow(0, 0, static_cast<std::int64_t>(size_.parameters));
}
at::Tensor StepNumbers::seen() const {
  const auto begin = static_cast<std::int64_t>(size_.parameters);
  return flat_.narrow(0, begin, flat_.numel() - kMaximums - begin);
}
at::Tensor StepNumbers::sums() const { return flat_.narrow(0, 0, flat_.numel() - kMaximums); }
at::Tensor StepNumbers::maximums() const {
  return flat_.narrow(0, flat_.numel() - kMaximums, kMaximums);
}

double StepNumbers::loss() const { return seen()[kLoss].item<double>(); }
double StepNumbers::max_logit() const { return maximums()[0].item<double>(); }
double StepNumbers::max_attention_lse() const { return maximums()[1].item<double>(); }
double StepNumbers::grad_norm() const { return norm_of_squares(squares()); }

RouterSums StepNumbers::router() const {
  const auto number = [&](Seen place) { return seen()[place].item<double>(); };
  RouterSums sums;
  sums.balance = number(kBalance);
  sums.z = number(kRouterZ);
  sums.entropy = number(kEntropy);
  sums.rows = static_cast<std::int64_t>(number(kRouterRows));
  sums.dropped = static_cast<std::int64_t>(number(kDropped));
  if (size_.experts > 0) {
    sums.loads_LE =
        seen().narrow(0, kLoads, size_.layers * size_.experts).view({size_.layers, size_.experts});
  }
  return sums;
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
