// SPDX-License-Identifier: Apache-2.0
// Makes chosen calls go wrong, so that tests can watch a job fail well. Outside checked a fault is
// the caller's mistake; inside watched and checked it is the link's.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quatrain/comm/decorator.h"

namespace quatrain {

enum class Fault : std::uint8_t {
  kDelay,           // the call is made after `delay`
  kDrop,            // the call is never made; its wait ends only when the job fails
  kThrow,           // BugError in place of the call
  kWrongShape,      // a legal call with one element or row less or more than the peers'
  kOtherOperation,  // a barrier instead; instead of a barrier an all_reduce
  kDie              // SIGKILL to the process
};

// What goes wrong where. The sequence number is the one in messages: the group's collectives are
// counted from 1, messages by sender and receiver.
struct FaultRule {
  int rank = 0;                             // of the world
  std::string group = {};                   // empty: any
  std::optional<Operation> operation = {};  // none: any
  std::int64_t sequence = 1;
  Fault fault = Fault::kDelay;
  std::chrono::milliseconds delay{0};
};

// The rules are the same on every rank; of several that fit a call the first is taken. With a rule
// that drops, every group gets a twin, "<name>.dropped", in which the dropping rank waits: where
// that wait is watched, its timeout should be longer than the others'.
std::unique_ptr<Communicator> make_faulty(std::unique_ptr<Communicator> inner,
                                          std::vector<FaultRule> rules);

}  // namespace quatrain
