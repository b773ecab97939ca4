// SPDX-License-Identifier: Apache-2.0
// What the targets share. A parser may refuse an input with an error that names it; whatever else
// leaves it, and a promise that does not hold of what it took, ends the process.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "quatrain/base/error.h"

namespace quatrain {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

inline void promise(bool holds) {
  if (!holds) std::abort();
}

template <class Parse>
int unless_refused(const Parse& parse) {
  try {
    parse();
  } catch (const DataError&) {
  } catch (const ConfigError&) {
  }
  return 0;
}

}  // namespace quatrain

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
