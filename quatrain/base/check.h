// SPDX-License-Identifier: Apache-2.0
// CHECK(condition, "format {}", values...): throws BugError with file, line, condition and text.
// For what only our own mistake can break; a user's mistake is a ConfigError with a remedy.
#pragma once
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "quatrain/base/error.h"

namespace quatrain {
[[noreturn]] void fail_check(std::string_view file, int line, std::string_view condition,
                             const std::string& text);
}  // namespace quatrain

// Why: torch's logging header has a CHECK of its own, so this header comes after ATen's.
#undef CHECK
#define CHECK(condition, ...)                                                               \
  do {                                                                                      \
    if (!(condition)) [[unlikely]]                                                          \
      ::quatrain::fail_check(__FILE__, __LINE__, #condition,                                \
                             ::fmt::format("" __VA_ARGS__));                                \
  } while (false)
