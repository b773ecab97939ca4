// SPDX-License-Identifier: Apache-2.0
// What the programs of the communication benchmark share: the operations as steps that may be
// repeated, and contenders timed in turn (A B A B ...). S is the whole buffer of an operation, as
// nccl-tests count it: of one rank in all_reduce, all_to_all and send/recv, of all ranks together
// in all_gather and reduce_scatter.
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "quatrain/comm/communicator.h"

namespace CLI {
class App;
}

namespace quatrain {

enum class BenchOperation { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kSendRecv };

using Step = std::function<void()>;  // one blocking call

struct Contender {
  std::string name;
  // The operation on `piece` floats from or to each of n ranks: S = 4 n piece bytes; send/recv: on
  // n piece floats.
  std::function<Step(BenchOperation, std::int64_t piece)> prepare;
};

// The operations of a Communicator; `comm` outlives the steps.
Contender over_communicator(std::string name, Communicator& comm);

struct BenchOptions {
  int rounds = 1;                 // of all contenders, in turn
  double budget_s = 0.015;        // of one measurement
  std::int64_t bytes = 64 << 20;  // the largest S
};

// Times every operation at S = 4 B (one float a rank at least), 16 B, ... Collective: each rank
// calls it with the same contenders. A time is one call's, on the slowest rank. Returns rows of
// {operation, bytes, ranks, contender, seconds: [a number a round]}.
nlohmann::json measure(Communicator& world, std::span<const Contender> contenders,
                       const BenchOptions& options);

void add_options(CLI::App& app, BenchOptions& options);

}  // namespace quatrain
