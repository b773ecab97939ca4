// SPDX-License-Identifier: Apache-2.0
#include "quatrain/nn/tensor_parallel.h"

#include <ATen/ops/empty.h>

#include <array>
#include <utility>

#include "quatrain/nn/check.h"

namespace quatrain {
namespace {

ShardSpec on_tp(const Placement& placement) { return {{{Axis::kTp, placement}}}; }

Placement residual_stream(bool sequence_parallel) {
  if (sequence_parallel) return Shard{.dim = 0};
  return Replicate{};
}

Mesh mesh_of_group(const Communicator& group) {
  Mesh::Degrees degrees;
  degrees.fill(1);
  degrees[static_cast<std::size_t>(Axis::kTp)] = group.size();
  return Mesh(degrees, group.rank());
}

std::vector<Collective> convert(const Placement& from, const Placement& to,
                                const Communicator& group) {
  const std::array<std::int64_t, 2> shape{group.size(), 1};  // the kinds are the same for any
  return conversion(on_tp(from), on_tp(to), shape, Bytes{1}, mesh_of_group(group));
}

at::Tensor matrix_like(const at::Tensor& x_MD, std::int64_t rows) {
  return at::empty({rows, x_MD.size(1)}, x_MD.options());
}

}  // namespace

TensorParallel::TensorParallel(Communicator& group, const TensorParallelOptions& options)
    : group_(group),
      options_(options),
      to_whole_(convert(residual_stream(options.sequence_parallel), Replicate{}, group)),
      to_rows_(convert(Partial{}, residual_stream(options.sequence_parallel), group)) {
  CHECK(to_whole_.size() <= 1 && to_rows_.size() <= 1, "a conversion of several steps");
}

Range TensorParallel::own(std::int64_t rows) const {
  return cuts_rows() ? piece(rows, degree(), rank()) : Range{0, rows};
}

at::Tensor TensorParallel::own_rows(const at::Tensor& x_N) const {
  const Range range = own(x_N.size(0));
  return x_N.narrow(0, range.begin, range.size());
}

std::vector<std::int64_t> TensorParallel::rows_of_ranks(std::int64_t rows) const {
  std::vector<std::int64_t> sizes;
  for (int r = 0; r < degree(); ++r) sizes.push_back(piece(rows, degree(), r).size());
  return sizes;
}

Moving TensorParallel::to_whole(const at::Tensor& x_RD, std::int64_t rows) const {
  if (to_whole_.empty()) return Moving(x_RD);
  CHECK(to_whole_[0].kind == CollectiveKind::kAllGather, "{}", to_string(to_whole_[0]));
  at::Tensor all_ND = matrix_like(x_RD, rows);
  Work work = group_.all_gather(all_ND, x_RD, rows_of_ranks(rows));
  return Moving(std::move(all_ND), std::move(work));
}

Moving TensorParallel::to_rows(const at::Tensor& terms_ND) const {
  return to_rows(terms_ND, cuts_rows() ? rows_of_ranks(terms_ND.size(0))
                                       : std::vector<std::int64_t>{terms_ND.size(0)});
}

Moving TensorParallel::to_rows(const at::Tensor& terms_MD,
                               const std::vector<std::int64_t>& rows) const {
  if (to_rows_.empty()) return Moving(terms_MD);
  if (to_rows_[0].kind == CollectiveKind::kAllReduce) {
    return Moving(terms_MD, group_.all_reduce(terms_MD, ReduceOp::kSum));
  }
  CHECK(to_rows_[0].kind == CollectiveKind::kReduceScatter, "{}", to_string(to_rows_[0]));
  at::Tensor sum_RD = matrix_like(terms_MD, rows[static_cast<std::size_t>(rank())]);
  Work work = group_.reduce_scatter(sum_RD, terms_MD, rows, ReduceOp::kSum);
  return Moving(std::move(sum_RD), std::move(work));
}

}  // namespace quatrain
