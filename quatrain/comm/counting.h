// SPDX-License-Identifier: Apache-2.0
// Counts calls and the bytes that this rank sends, by group and operation: the runtime's side of
// "predicted bytes equal counted bytes". What is counted follows from the arguments alone, by the
// ring convention of conversion() in mesh/placement.h, not from the backend's algorithm.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "quatrain/base/units.h"
#include "quatrain/comm/decorator.h"

namespace quatrain {

struct CommCount {
  std::int64_t calls = 0;
  Bytes bytes{};
  CommCount& operator+=(CommCount other);
  CommCount& operator-=(CommCount other);
  friend bool operator==(CommCount, CommCount) = default;
};

// One rank's books; a value (a copy is a snapshot). Belongs to that rank's thread.
class CommCounts {
 public:
  using ByOperation = std::array<CommCount, kNumOperations>;

  CommCount of(std::string_view group, Operation operation) const;
  CommCount total(std::string_view group) const;
  CommCount total() const;
  const std::map<std::string, ByOperation, std::less<>>& groups() const { return groups_; }

  // What was counted since the snapshot `before` was taken of the same books.
  CommCounts since(const CommCounts& before) const;
  void reset();
  // One line a group and operation that was called: "dp_shard all_gather: 3 calls, 1536 B".
  std::string to_string() const;

  // The entry of a group; stays in place, through reset() too, as long as the books live.
  ByOperation& entry(std::string_view group);

  // Equal where every count is; a group that never called counts as absent.
  friend bool operator==(const CommCounts& a, const CommCounts& b);

 private:
  std::map<std::string, ByOperation, std::less<>> groups_;
};

// What one rank of `size` sends for `call`, S being the bytes of the whole tensor:
// all_reduce          2 (n-1) ceil(elements / n) elements
// all_gather, reduce_scatter   (n-1) pieces, each padded to the largest: (n-1)/n S where even
// all_to_all          the rows that leave this rank, unpadded
// broadcast           (n-1) ceil(elements / n) elements, whoever is root: all ranks together send
//                     what must cross, S to each of n-1
// send S; recv and barrier nothing.
Bytes bytes_sent(const Call& call, int rank, int size);

// `counts` must outlive the communicator and its groups. Groups of one name share an entry; what
// follows a colon in a name ("pp:0>1:F") makes no difference.
std::unique_ptr<Communicator> make_counting(std::unique_ptr<Communicator> inner,
                                            CommCounts& counts);

}  // namespace quatrain
