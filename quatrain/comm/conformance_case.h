// SPDX-License-Identifier: Apache-2.0
// One random operation on a communicator, its tensors and what must come out.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "quatrain/base/rng.h"
#include "quatrain/comm/communicator.h"
#include "quatrain/comm/describe.h"

namespace quatrain {

// Numbers drawn one after the other.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t number) : stream_(seed, number) {}
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(stream_.below(index_++, static_cast<std::uint64_t>(bound)));
  }

 private:
  RandomStream stream_;
  std::uint64_t index_ = 0;
};

struct ConformanceCase {
  Operation operation = Operation::kBarrier;
  at::ScalarType dtype = at::kFloat;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;                    // broadcast; send and recv: the sender
  int to = 0;                      // send and recv: the receiver
  std::vector<std::int64_t> tail;  // sizes of a row
  std::vector<std::int64_t> rows;  // by member; all_to_all: [from * size + to]
  std::uint64_t numbers = 0;       // names what the ranks bring
  int layout = 0;                  // of tensors: dense, transposed, every second element
  bool in_place = false;           // all_gather, reduce_scatter
};

// Any operation but recv (a send stands for both) and group.
Operation draw_operation(Draws& draws);
ConformanceCase draw_case(Draws& draws, Operation operation, int members);
std::string to_string(const ConformanceCase& c);

// An operation in flight.
struct ConformanceWork {
  Work work;
  std::string text;
  at::Tensor out;
  at::Tensor expected;
  at::Tensor in;  // must stay as it was; may be undefined
  at::Tensor in_before;

  // Waits; throws BugError when anything differs.
  void finish();
};

// Calls this rank's side: nothing for who is neither sender nor receiver, both for who is both.
std::vector<ConformanceWork> start_case(Communicator& comm, const ConformanceCase& c);

}  // namespace quatrain
