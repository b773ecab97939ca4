// SPDX-License-Identifier: Apache-2.0
// What check() finds, with the rule and the actions, for tools that act on them.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/schedule/action_index.h"

namespace quatrain {

enum class Rule : std::uint8_t {
  kShape,            // counts and placement make sense; nothing else is looked at where they do not
  kOutOfRange,       // stage, replica or micro-batch that the schedule does not have
  kWrongRank,        // an action away from its stage
  kRepeated,         // one computation, message, tied reduce or step twice
  kMissing,          // a forward or backward that no row has
  kTwoBackwards,     // fused and in halves
  kTwoReplicas,      // one micro-batch in both
  kOrder,            // in a row, before what it needs
  kMissingSend,      // once messages are written, every hop between ranks has both ends
  kMissingReceive,   //
  kLocalMessage,     // to a stage of the same rank, or out of the pipeline
  kLaneOrder,        // between two ranks, receives come in the order of sends
  kDeadlock,         // rows wait in a circle, with messages that block until both ends are there
  kReduceTooEarly,   // REDUCE_GRAD or REDUCE_TIED ahead of a gradient that it sums
  kReducePartner,    // REDUCE_TIED has its other owner: the first and the last stage
  kNormTooEarly,     // NORM_PART ahead of a gradient or its reduction
  kAfterStep,        // computation or reduction of a stage behind its optimizer step
  kMissingStep,      // some stages step, others do not
  kUnbalancedUnits,  // UNSHARD of what is there, RESHARD of what is not, or never freed
};
std::string_view code(Rule rule);  // "missing-receive"

struct Violation {
  Rule rule;
  Problem problem;
  std::vector<Place> actions;  // that it concerns, the one at fault first; none for what is missing
};

// All of them. Rows by layer (after with_zero) are not understood: check before.
std::vector<Violation> violations(const Schedule& schedule);

}  // namespace quatrain
