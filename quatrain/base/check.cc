// SPDX-License-Identifier: Apache-2.0
// What a failed CHECK says. The path is cut at "quatrain/", so that messages are the same on every
// machine.
#include "quatrain/base/check.h"

namespace quatrain {

void fail_check(std::string_view file, int line, std::string_view condition,
                const std::string& text) {
  const std::size_t root = file.rfind("quatrain/");
  if (root != std::string_view::npos) file.remove_prefix(root);
  std::string message = fmt::format("{}:{}: check failed: {}", file, line, condition);
  if (!text.empty()) message += ": " + text;
  throw BugError(message);
}

}  // namespace quatrain
