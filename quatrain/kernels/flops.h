// SPDX-License-Identifier: Apache-2.0
// Counts the FLOPs of matrix products by pass. Attention counts its visible (query, key) pairs only
// (2 d FLOPs for each of its products), whatever blocks the kernel computes.
#pragma once
#include <array>
#include <cstdint>

namespace quatrain {

enum class PassKind : std::uint8_t { kForward, kBackwardInput, kBackwardWeight };

struct FlopCounter {
  std::array<std::int64_t, 3> flops{};
  PassKind pass = PassKind::kForward;
  std::int64_t operator[](PassKind p) const { return flops[static_cast<std::size_t>(p)]; }
  std::int64_t total() const { return flops[0] + flops[1] + flops[2]; }
};

// Makes `counter` (may be null) current on this thread until destroyed.
class ScopedFlopCounter {
 public:
  explicit ScopedFlopCounter(FlopCounter* counter);
  ~ScopedFlopCounter();
  ScopedFlopCounter(const ScopedFlopCounter&) = delete;
  ScopedFlopCounter& operator=(const ScopedFlopCounter&) = delete;

 private:
  FlopCounter* previous_;
};
// Sets the pass of the current counter until destroyed: the head's forward uses it, since it makes
// all three halves at once.
class ScopedPass {
 public:
  explicit ScopedPass(PassKind pass);
  ~ScopedPass();
  ScopedPass(const ScopedPass&) = delete;
  ScopedPass& operator=(const ScopedPass&) = delete;

 private:
  PassKind previous_;
};
void count_flops(std::int64_t flops);

}  // namespace quatrain
