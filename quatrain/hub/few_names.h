// SPDX-License-Identifier: Apache-2.0
// The tensors that a load complains of: how many, and the first few.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/base/text.h"

namespace quatrain {

inline constexpr std::size_t kNamesShown = 5;

// "; 7 missing: a, b, c, d, e, ..."; nothing where there are none.
inline std::string few_names(std::string_view what, const std::vector<std::string>& names) {
  if (names.empty()) return "";
  const std::size_t shown = std::min(names.size(), kNamesShown);
  return fmt::format("; {} {}: {}{}", names.size(), what, join(std::span(names).first(shown), ", "),
                     shown < names.size() ? ", ..." : "");
}

}  // namespace quatrain
