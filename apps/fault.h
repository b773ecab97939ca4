// SPDX-License-Identifier: Apache-2.0
// debug.fault: one call of one rank that goes wrong, so that a user can watch a job fail before a
// cluster makes it fail.
#pragma once
#include <string_view>
#include <vector>

#include "quatrain/comm/faulty.h"

namespace quatrain::apps {

// "rank=5,operation=all_gather,sequence=7,action=throw" in any order, and group=NAME: `action` is
// needed; rank 0, any operation, any group and sequence 1 are meant otherwise. Nothing for an empty
// text. Throws ConfigError that says which word is wrong and what it could be; `ranks` are there.
std::vector<FaultRule> parse_fault(std::string_view text, int ranks);

}  // namespace quatrain::apps
