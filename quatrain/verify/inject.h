// SPDX-License-Identifier: Apache-2.0
// Faults that are planted to see whether verify sees them. Each changes one rank's run through its
// RankHooks alone: a collective that is left out or doubled, gradients changed between reduction
// and update, positions, seeds. The engine knows nothing of them.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/spec/model_spec.h"
#include "quatrain/verify/run.h"

namespace quatrain {

struct FaultKind {
  std::string_view name;      // "scale"
  std::string_view argument;  // "NAME:FACTOR"; empty: none
  std::string_view help;
};
// All there are, for help and messages.
std::vector<FaultKind> fault_kinds();

// "scale=NAME:1.01": what Side::hooks takes. NAME is a parameter's. Throws ConfigError that says
// what is wrong with the text and what would be right.
std::function<std::unique_ptr<RankHooks>(const Mesh& mesh)> parse_injection(std::string_view text,
                                                                        const ModelSpec& spec);

}  // namespace quatrain
