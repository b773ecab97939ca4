// SPDX-License-Identifier: Apache-2.0
// How an operation is called in messages, the same in every backend and decorator:
// "thread all_gather #3 on dp_shard {0, 2}". Ranks in braces are the world's. Collectives of a
// group are counted from 1; messages are counted by sender and receiver.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "quatrain/comm/communicator.h"

namespace quatrain {

enum class Operation : std::uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kSend,
  kRecv,
  kBarrier,
  kGroup
};
inline constexpr int kNumOperations = 9;

// Takes a ReduceOp.
constexpr bool reduces(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kReduceScatter;
}
std::string_view name(Operation operation);  // "all_reduce", ..., "group"
std::string_view name(ReduceOp op);          // "sum", "max", "min"

// "<backend> <operation> #<sequence> on <name> {<world ranks>}"
std::string where(std::string_view backend, Operation operation, std::int64_t sequence,
                  std::string_view group, std::span<const int> world_ranks);
std::string where(const Communicator& comm, Operation operation, std::int64_t sequence);

std::string describe(const at::Tensor& x);  // "Float[4, 3]", "undefined"
std::string describe(at::ScalarType dtype, std::span<const std::int64_t> sizes);

// "waits for rank 2", "waits for ranks 2, 5"
std::string waits_for(std::span<const int> world_ranks);

}  // namespace quatrain
