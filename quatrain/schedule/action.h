// SPDX-License-Identifier: Apache-2.0
// One thing one pipeline rank does, and its text form: that of torch.distributed.pipelining
// (<stage><kind>[<microbatch>]: "2F0", "1I3", "0SEND_F2", "3UNSHARD"), so schedules can be
// exchanged with it as CSV. ZeRO units are named after a dot: "0UNSHARD.4".
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace quatrain {

enum class ActionKind : std::uint8_t {
  kForward,
  kBackwardInput,
  kBackwardWeight,
  kBackward,  // F I W B (B: both halves, fused)
  kSendForward,
  kRecvForward,
  kSendBackward,
  kRecvBackward,
  kUnshard,
  kReshard,
  kReduceGrad,
  kReduceTied,
  kNormPart,
  kOptimizerStep
};

struct Action {
  int stage = 0;
  ActionKind kind = ActionKind::kForward;
  std::optional<int> microbatch;
  std::optional<int> unit;                // of ZeRO
  int replica = 0;                        // 1: the second direction of dualpipe
  std::shared_ptr<const Action> overlap;  // the other half of an OVERLAP_F_B pair
  friend bool operator==(const Action& a, const Action& b);
};

std::string to_string(const Action& action);
Action parse_action(std::string_view text);  // throws ConfigError naming the text and the grammar

}  // namespace quatrain
