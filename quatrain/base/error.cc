// SPDX-License-Identifier: Apache-2.0
// Findings of validators as text.
#include "quatrain/base/error.h"

namespace quatrain {

std::string to_string(const Problems& problems) {
  std::string text;
  for (const Problem& problem : problems) {
    if (!text.empty()) text += '\n';
    if (!problem.where.empty()) text += problem.where + ": ";
    text += problem.what;
    if (!problem.hint.empty()) text += "; " + problem.hint;
  }
  return text;
}

void throw_if_any(const Problems& problems) {
  if (!problems.empty()) throw ConfigError(to_string(problems));
}

}  // namespace quatrain
