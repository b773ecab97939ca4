// SPDX-License-Identifier: Apache-2.0
// What one rank calls, whether calls of several ranks fit together, and the bytes that each rank's
// part of an operation moves: plain functions of the calls, whichever thread runs them.
#pragma once
#include <c10/core/ScalarType.h>
#include <c10/util/DimVector.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>

#include "quatrain/comm/describe.h"

namespace quatrain {

inline std::int64_t sum_of(std::span<const std::int64_t> rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

// Pointers are the caller's, valid until the operation is done or the call withdrawn.
struct ThreadCall {
  Operation operation = Operation::kBarrier;
  at::ScalarType dtype = at::kFloat;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;           // broadcast: in the group
  at::DimVector sizes;     // of the tensor; without the first where rows are given
  at::DimVector rows;      // all_gather and reduce_scatter: of each member's piece
  at::DimVector in_rows;   // all_to_all: to each member
  at::DimVector out_rows;  // all_to_all: from each member
  const std::byte* in = nullptr;
  std::byte* out = nullptr;

  std::int64_t numel() const;      // product of sizes
  std::int64_t row_bytes() const;  // bytes of `sizes`
};

std::string to_string(const ThreadCall& call);  // "all_reduce sum Float[4, 3]"

// Whether `first` of member i and `second` of member j belong to one operation. send fits recv.
bool fit(const ThreadCall& first, int i, const ThreadCall& second, int j);

// Bytes that all parts together write.
std::int64_t bytes_moved(std::span<const ThreadCall> calls);

// Moves what is member's to move; calls are by member (send and recv: the sender's, the
// receiver's). Parts of one operation may run at once and in any order.
void run_part(std::span<const ThreadCall> calls, int member);

}  // namespace quatrain
