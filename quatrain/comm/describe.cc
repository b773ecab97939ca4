// SPDX-License-Identifier: Apache-2.0
// The words that messages about communication share.
#include "quatrain/comm/describe.h"

#include <fmt/format.h>

#include "quatrain/base/error.h"

namespace quatrain {

std::string_view name(Operation operation) {
  switch (operation) {
    case Operation::kAllReduce:
      return "all_reduce";
    case Operation::kAllGather:
      return "all_gather";
    case Operation::kReduceScatter:
      return "reduce_scatter";
    case Operation::kAllToAll:
      return "all_to_all";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kSend:
      return "send";
    case Operation::kRecv:
      return "recv";
    case Operation::kBarrier:
      return "barrier";
    case Operation::kGroup:
      return "group";
  }
  throw BugError("an operation without a name");
}

std::string_view name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kMin:
      return "min";
  }
  throw BugError("a reduction without a name");
}

std::string where(std::string_view backend, Operation operation, std::int64_t sequence,
                  std::string_view group, std::span<const int> world_ranks) {
  return fmt::format("{} {} #{} on {} {{{}}}", backend, name(operation), sequence, group,
                     fmt::join(world_ranks, ", "));
}

std::string where(const Communicator& comm, Operation operation, std::int64_t sequence) {
  return where(comm.backend(), operation, sequence, comm.name(), comm.ranks());
}

std::string describe(const at::Tensor& x) {
  return x.defined() ? describe(x.scalar_type(), x.sizes()) : "undefined";
}

std::string describe(at::ScalarType dtype, std::span<const std::int64_t> sizes) {
  return fmt::format("{}[{}]", c10::toString(dtype), fmt::join(sizes, ", "));
}

std::string waits_for(std::span<const int> world_ranks) {
  return fmt::format("waits for rank{} {}", world_ranks.size() == 1 ? "" : "s",
                     fmt::join(world_ranks, ", "));
}

}  // namespace quatrain
