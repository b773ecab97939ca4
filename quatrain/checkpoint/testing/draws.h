// SPDX-License-Identifier: Apache-2.0
// Random choices of a test, the same on every machine.
#pragma once
#include <cstdint>
#include <string_view>

#include "quatrain/base/rng.h"

namespace quatrain::testing {

// Draws in the order of their use.
class Draws {
 public:
  Draws(std::uint64_t seed, std::string_view name) : stream_(seed, name) {}
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(stream_.below(next_++, static_cast<std::uint64_t>(bound)));
  }
  // [low, high]
  std::int64_t between(std::int64_t low, std::int64_t high) { return low + below(high - low + 1); }
  std::uint64_t bits() { return stream_.bits(next_++); }

 private:
  RandomStream stream_;
  std::uint64_t next_ = 0;
};

}  // namespace quatrain::testing
