// SPDX-License-Identifier: Apache-2.0
// What the user has decided about a geometry.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "quatrain/spec/plan.h"

namespace quatrain {

// Absent: searched.
struct Fixed {
  std::optional<int> dp, dp_replicate, zero, tp, cp, pp, chunks, ep, etp;
  std::optional<bool> sequence_parallel, gather_again;
  std::optional<std::int64_t> micro_batch;
  std::optional<Recompute> recompute;
  std::optional<std::string> schedule;
};
// "tp=8,pp=1". Throws ConfigError with the keys that exist, or with what a value should be.
Fixed parse_fixed(std::string_view text);
// Both; `more` wins.
Fixed merged(Fixed base, const Fixed& more);

}  // namespace quatrain
