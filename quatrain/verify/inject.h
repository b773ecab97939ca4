// SPDX-License-Identifier: Apache-2.0
// Faults that are planted to see whether verify sees them. Each changes one rank's run through its
// RankHooks alone: a collective that is left out or doubled, gradients changed between reduction
// and update, positions, seeds. The engine knows nothing of them.
#pragma once
#include <atomic>
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

struct Injection {
  std::function<std::unique_ptr<RankHooks>(const Mesh& mesh)> hooks;  // Side's
  // Whether any rank's run was changed: a group or unit that is not there changes nothing.
  std::shared_ptr<const std::atomic<bool>> met;
};
// Of "scale=NAME:1.01". Throws ConfigError that says what is wrong with the text and what would be
// right.
Injection parse_injection(std::string_view text, const ModelSpec& spec);

}  // namespace quatrain
