// SPDX-License-Identifier: Apache-2.0
// all_reduce: part r reduces piece r of every tensor and writes it into every tensor, in one pass.
// The others: part r fills what is rank r's, straight from the peers' tensors.
#include "quatrain/comm/thread/part.h"

#include <c10/util/SmallVector.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <numeric>

#include "quatrain/comm/sum.h"

namespace quatrain {
namespace {

using Calls = std::span<const ThreadCall>;
template <class T>
using Pointers = c10::SmallVector<T, 16>;  // a rank each

// Rows before member's in a tensor of consecutive pieces.
std::int64_t rows_before(std::span<const std::int64_t> rows, std::size_t member) {
  return sum_of(rows.first(member));
}

void copy_bytes(std::byte* out, const std::byte* in, std::int64_t bytes) {
  if (bytes > 0 && out != in) std::memcpy(out, in, static_cast<std::size_t>(bytes));
}

// First element of piece r of n: pieces end at cache lines, so that no two threads write one.
std::int64_t piece_begin(std::int64_t count, std::size_t n, std::size_t r) {
  constexpr std::int64_t kGrain = 64;
  const std::int64_t grains = (count + kGrain - 1) / kGrain;
  const auto cut = grains * static_cast<std::int64_t>(r) / static_cast<std::int64_t>(n);
  return std::min(count, cut * kGrain);
}

void all_reduce_part(Calls calls, std::size_t member) {
  const std::int64_t count = calls[0].numel();
  const std::int64_t begin = piece_begin(count, calls.size(), member);
  const std::int64_t end = piece_begin(count, calls.size(), member + 1);
  const auto offset = begin * static_cast<std::int64_t>(c10::elementSize(calls[0].dtype));
  Pointers<std::byte*> outs;
  for (const ThreadCall& call : calls) outs.push_back(call.out + offset);
  const Pointers<const std::byte*> sources(outs.begin(), outs.end());
  if (end > begin) reduce_in_order(outs, sources, end - begin, calls[0].dtype, calls[0].op);
}

void all_gather_part(Calls calls, std::size_t member) {
  const ThreadCall& mine = calls[member];
  std::byte* out = mine.out;
  for (std::size_t peer = 0; peer < calls.size(); ++peer) {
    const std::int64_t bytes = mine.rows[peer] * mine.row_bytes();
    copy_bytes(out, calls[peer].in, bytes);
    out += bytes;
  }
}

void reduce_scatter_part(Calls calls, std::size_t member) {
  const ThreadCall& mine = calls[member];
  const std::int64_t offset = rows_before(mine.rows, member) * mine.row_bytes();
  const std::int64_t count = mine.rows[member] * mine.numel();
  if (count == 0) return;
  Pointers<const std::byte*> sources;
  for (const ThreadCall& call : calls) sources.push_back(call.in + offset);
  const std::array<std::byte*, 1> out = {mine.out};
  reduce_in_order(out, sources, count, mine.dtype, mine.op);
}

void all_to_all_part(Calls calls, std::size_t member) {
  const ThreadCall& mine = calls[member];
  std::byte* out = mine.out;
  for (std::size_t peer = 0; peer < calls.size(); ++peer) {
    const std::int64_t offset = rows_before(calls[peer].in_rows, member) * mine.row_bytes();
    const std::int64_t bytes = mine.out_rows[peer] * mine.row_bytes();
    if (bytes > 0) copy_bytes(out, calls[peer].in + offset, bytes);
    out += bytes;
  }
}

std::string rows_text(const char* what, std::span<const std::int64_t> rows) {
  return rows.empty() ? "" : fmt::format(" {} {{{}}}", what, fmt::join(rows, ", "));
}

}  // namespace

std::int64_t ThreadCall::numel() const {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t ThreadCall::row_bytes() const {
  return numel() * static_cast<std::int64_t>(c10::elementSize(dtype));
}

std::string to_string(const ThreadCall& call) {
  std::string text(name(call.operation));
  if (call.operation == Operation::kBarrier) return text;
  if (reduces(call.operation)) text += fmt::format(" {}", name(call.op));
  if (call.root >= 0) text += fmt::format(" from {}", call.root);
  std::string_view first;
  if (!call.rows.empty() || !call.in_rows.empty()) first = call.sizes.empty() ? "rows" : "rows, ";
  text += fmt::format(" {}[{}{}]", c10::toString(call.dtype), first, fmt::join(call.sizes, ", "));
  return text + rows_text("rows", call.rows) + rows_text("in rows", call.in_rows) +
         rows_text("out rows", call.out_rows);
}

bool fit(const ThreadCall& first, int i, const ThreadCall& second, int j) {
  const bool message =
      first.operation != second.operation &&
      (first.operation == Operation::kSend || first.operation == Operation::kRecv) &&
      (second.operation == Operation::kSend || second.operation == Operation::kRecv);
  if (!message && first.operation != second.operation) return false;
  if (first.dtype != second.dtype || first.sizes != second.sizes) return false;
  if (first.op != second.op || first.root != second.root || first.rows != second.rows) return false;
  if (first.operation != Operation::kAllToAll) return true;
  const auto at_i = static_cast<std::size_t>(i);
  const auto at_j = static_cast<std::size_t>(j);
  return first.in_rows[at_j] == second.out_rows[at_i] &&
         second.in_rows[at_i] == first.out_rows[at_j];
}

std::int64_t bytes_moved(std::span<const ThreadCall> calls) {
  const ThreadCall& call = calls[0];
  const auto members = static_cast<std::int64_t>(calls.size());
  switch (call.operation) {
    case Operation::kAllReduce:
    case Operation::kBroadcast:
      return call.row_bytes() * members;
    case Operation::kAllGather:
      return sum_of(call.rows) * call.row_bytes() * members;
    case Operation::kReduceScatter:
      return sum_of(call.rows) * call.row_bytes();
    case Operation::kAllToAll: {
      std::int64_t rows = 0;
      for (const ThreadCall& each : calls) rows += sum_of(each.out_rows);
      return rows * call.row_bytes();
    }
    case Operation::kSend:
    case Operation::kRecv:
      return call.row_bytes();
    case Operation::kBarrier:
    case Operation::kGroup:
      return 0;
  }
  return 0;
}

void run_part(std::span<const ThreadCall> calls, int member) {
  const auto at = static_cast<std::size_t>(member);
  const ThreadCall& mine = calls[at];
  switch (mine.operation) {
    case Operation::kAllReduce:
      return all_reduce_part(calls, at);
    case Operation::kAllGather:
      return all_gather_part(calls, at);
    case Operation::kReduceScatter:
      return reduce_scatter_part(calls, at);
    case Operation::kAllToAll:
      return all_to_all_part(calls, at);
    case Operation::kBroadcast:
      return copy_bytes(mine.out, calls[static_cast<std::size_t>(mine.root)].out, mine.row_bytes());
    case Operation::kRecv:
      return copy_bytes(mine.out, calls[0].in, mine.row_bytes());
    case Operation::kSend:  // the receiver copies
    case Operation::kBarrier:
    case Operation::kGroup:
      return;
  }
}

}  // namespace quatrain
