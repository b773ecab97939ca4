// SPDX-License-Identifier: Apache-2.0
// Layout: operation, sequence, dtype, reduce operation, root, dims, kDims sizes, number of
// rows, n rows, n rows of all_to_all's out.
#include "quatrain/comm/call_header.h"

#include <fmt/format.h>

#include <algorithm>

#include "quatrain/base/check.h"

namespace quatrain {
namespace {

constexpr std::size_t kDims = 8;
enum Field : std::size_t {
  kOperation,
  kSequence,
  kDtype,
  kReduce,
  kRoot,
  kNumDims,
  kSizes,
  kNumRows = kSizes + kDims,
  kRows
};
constexpr std::int64_t kNone = -1;

using Header = std::span<const std::int64_t>;

Operation operation_of(Header header) { return static_cast<Operation>(header[kOperation]); }

bool has_rows(Operation operation) {
  return operation == Operation::kAllGather || operation == Operation::kReduceScatter ||
         operation == Operation::kAllToAll;
}

bool agree(Header a, Header b, std::size_t field, std::size_t count = 1) {
  return std::equal(a.begin() + static_cast<std::ptrdiff_t>(field),
                    a.begin() + static_cast<std::ptrdiff_t>(field + count),
                    b.begin() + static_cast<std::ptrdiff_t>(field));
}

// Where pieces are uneven, dim 0 is each rank's own.
bool same_tensor(Header a, Header b) {
  const bool rows = has_rows(operation_of(a));
  return agree(a, b, kDtype) && agree(a, b, kNumDims) &&
         agree(a, b, kSizes + (rows ? 1 : 0), kDims - (rows ? 1 : 0));
}

bool same_call(Header a, Header b, int n) {
  const bool pairwise = operation_of(a) == Operation::kAllToAll;  // its rows differ by pair
  return agree(a, b, kOperation) && agree(a, b, kSequence) && agree(a, b, kReduce) &&
         agree(a, b, kRoot) && same_tensor(a, b) && agree(a, b, kNumRows) &&
         (pairwise || agree(a, b, kRows, static_cast<std::size_t>(n)));
}

// The first pair of ranks that send each other other rows than they expect.
std::optional<std::string> row_disagreement(std::span<const Header> calls,
                                            std::span<const int> ranks) {
  const std::size_t n = ranks.size();
  for (std::size_t from = 0; from < n; ++from) {
    for (std::size_t to = 0; to < n; ++to) {
      const std::int64_t sent = calls[from][kRows + to];
      const std::int64_t expected = calls[to][kRows + n + from];
      if (sent == expected) continue;
      return fmt::format("rank {} sends {} rows to rank {}, which expects {}", ranks[from], sent,
                         ranks[to], expected);
    }
  }
  return std::nullopt;
}

}  // namespace

std::int64_t header_size(int n) { return static_cast<std::int64_t>(kRows) + 2 * n; }

std::vector<std::int64_t> pack_header(const Call& call, int n) {
  std::vector<std::int64_t> header(static_cast<std::size_t>(header_size(n)), 0);
  header[kOperation] = static_cast<std::int64_t>(call.operation);
  header[kSequence] = call.sequence;
  header[kReduce] = reduces(call.operation) ? static_cast<std::int64_t>(call.op) : kNone;
  header[kRoot] = call.operation == Operation::kBroadcast ? call.peer : kNone;
  header[kDtype] = kNone;
  if (const at::Tensor& x = call.tensor(); x.defined()) {
    CHECK(static_cast<std::size_t>(x.dim()) <= kDims, "a tensor of {} dims on the wire", x.dim());
    header[kDtype] = static_cast<std::int64_t>(x.scalar_type());
    header[kNumDims] = x.dim();
    std::copy(x.sizes().begin(), x.sizes().end(), header.begin() + kSizes);
  }
  header[kNumRows] = static_cast<std::int64_t>(call.rows.size());
  const auto room = static_cast<std::size_t>(n);
  const auto rows = header.begin() + kRows;
  std::copy_n(call.rows.begin(), std::min(call.rows.size(), room), rows);
  std::copy_n(call.out_rows.begin(), std::min(call.out_rows.size(), room), rows + n);
  return header;
}

std::string describe_header(std::span<const std::int64_t> header, int n) {
  const Operation operation = operation_of(header);
  std::string text = fmt::format("{} #{}", name(operation), header[kSequence]);
  if (header[kDtype] != kNone) {
    const Header sizes = header.subspan(kSizes, static_cast<std::size_t>(header[kNumDims]));
    text += " " + describe(static_cast<at::ScalarType>(header[kDtype]), sizes);
  }
  if (has_rows(operation)) {
    const Header rows = header.subspan(kRows, static_cast<std::size_t>(n));
    text += fmt::format(" rows {{{}}}", fmt::join(rows, ", "));
  }
  if (header[kReduce] != kNone) {
    text += fmt::format(" {}", name(static_cast<ReduceOp>(header[kReduce])));
  }
  if (header[kRoot] != kNone) text += fmt::format(" root {}", header[kRoot]);
  return text;
}

std::optional<std::string> disagreement(std::span<const std::int64_t> headers,
                                        std::span<const int> ranks) {
  const int n = static_cast<int>(ranks.size());
  const auto size = static_cast<std::size_t>(header_size(n));
  std::vector<Header> calls;
  for (std::size_t r = 0; r < ranks.size(); ++r) calls.push_back(headers.subspan(r * size, size));
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    if (same_call(calls[r], calls[0], n)) continue;
    return fmt::format("rank {} calls {}, rank {} calls {}", ranks[r], describe_header(calls[r], n),
                       ranks[0], describe_header(calls[0], n));
  }
  if (operation_of(calls[0]) != Operation::kAllToAll) return std::nullopt;
  return row_disagreement(calls, ranks);
}

bool message_fits(std::span<const std::int64_t> sent, std::span<const std::int64_t> received) {
  return same_tensor(sent, received) && agree(sent, received, kSequence);
}

}  // namespace quatrain
