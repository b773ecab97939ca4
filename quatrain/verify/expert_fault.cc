// SPDX-License-Identifier: Apache-2.0
#include "quatrain/verify/expert_fault.h"

#include <utility>

namespace quatrain {

void ScaledBalance::change(RankJobOptions& options) {
  if (!options.spec.experts || options.spec.experts->aux_loss_coef == 0.0) return;
  met();
  options.spec.experts->aux_loss_coef *= arguments().number;
}

void MeanExperts::on_gradients() {
  const Mesh& mesh = job().mesh;
  const AxisSet same{Axis::kEdpReplicate, Axis::kEdpShard};
  const AxisSet data{Axis::kDpReplicate, Axis::kDpShard};
  const double factor = static_cast<double>(mesh.degree(same)) / mesh.degree(data);
  if (factor == 1.0) return;
  for (const UnitShard& shard : job().units.shards()) {
    if (!shard.unit->of_experts() || !shard.grad.defined()) continue;
    met();
    at::Tensor(shard.grad).mul_(factor);
  }
}

// Counts of rows are told before weights go; gradients of weights come without.
Work ChangedRowNumbers::run(const Call& call, Communicator& group, const Forward& forward) {
  const bool rows = call.operation == Operation::kAllToAll && group.name() == "ep";
  if (!rows) return forward(call);
  if (call.out.scalar_type() == at::kLong) {
    told_ = true;
    return forward(call);
  }
  if (call.out.dim() != 1) return forward(call);
  const bool weights = std::exchange(told_, false);
  forward(call).wait();
  if (change(weights, call.out, call.out_rows, group.rank())) met();
  return {};
}

bool LocalRouter::change(bool weights, at::Tensor numbers, std::span<const std::int64_t> rows,
                         int rank) {
  if (weights) return false;
  std::int64_t begin = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (static_cast<int>(r) != rank) numbers.narrow(0, begin, rows[r]).zero_();
    begin += rows[r];
  }
  return true;
}

bool WeightOrder::change(bool weights, at::Tensor numbers, std::span<const std::int64_t>, int) {
  if (!weights) return false;
  numbers.copy_(numbers.flip(0));
  return true;
}

}  // namespace quatrain
