// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/replica_sums.h"

#include <ATen/ops/cat.h>

#include <vector>

namespace quatrain {

ReplicaSums::ReplicaSums(Communicator& tensor, int repeat) : tensor_(tensor), repeat_(repeat) {
  if (repeat == 1 || repeat == tensor.size()) return;
  std::vector<int> ranks;
  const int first = tensor.rank() / repeat * repeat;
  for (int r = first; r < first + repeat; ++r) ranks.push_back(r);
  neighbours_ = tensor.group(ranks, "tp_repeat");
}

void ReplicaSums::sum(ParamUnit& unit) {
  if (tensor_.size() == 1 || !unit.flat_grad().defined()) return;
  sum(unit, tensor_.size(), tensor_);
  if (neighbours_) sum(unit, repeat_, *neighbours_);
}

void ReplicaSums::sum(ParamUnit& unit, int replicas, Communicator& group) {
  std::vector<at::Tensor> terms;
  for (const Param& param : unit.params()) {
    const bool summed = param.partial_grad && param.replicas == replicas && param.info.trainable;
    if (summed) terms.push_back(param.grad.view({-1}));
  }
  if (terms.empty()) return;
  if (terms.size() == 1) return group.all_reduce(terms[0], ReduceOp::kSum).wait();
  const at::Tensor together = at::cat(terms);
  group.all_reduce(together, ReduceOp::kSum).wait();
  std::int64_t begin = 0;
  for (at::Tensor& term : terms) {
    term.copy_(together.narrow(0, begin, term.numel()));
    begin += term.numel();
  }
}

}  // namespace quatrain
