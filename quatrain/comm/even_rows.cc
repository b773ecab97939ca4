// SPDX-License-Identifier: Apache-2.0
// Collectives of equal pieces in terms of the uneven ones.
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/comm/communicator.h"

namespace quatrain {
namespace {

std::vector<std::int64_t> even_rows(const Communicator& comm, const at::Tensor& piece) {
  CHECK(piece.defined() && piece.dim() > 0, "{} of {}: a piece without rows", comm.backend(),
        comm.name());
  return std::vector<std::int64_t>(static_cast<std::size_t>(comm.size()), piece.size(0));
}

}  // namespace

Work all_gather(Communicator& comm, at::Tensor out, const at::Tensor& in) {
  return comm.all_gather(std::move(out), in, even_rows(comm, in));
}

Work reduce_scatter(Communicator& comm, at::Tensor out, const at::Tensor& in, ReduceOp op) {
  const std::vector<std::int64_t> rows = even_rows(comm, out);
  return comm.reduce_scatter(std::move(out), in, rows, op);
}

}  // namespace quatrain
