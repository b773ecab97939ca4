// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC11). A draw is a function of (seed, stream, index) alone: no state, no order.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace quatrain {

using PhiloxBlock = std::array<std::uint32_t, 4>;
PhiloxBlock philox4x32_10(PhiloxBlock counter, std::array<std::uint32_t, 2> key);

// A stream of draws keyed by (seed, name) or (seed, number).
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::string_view name);
  RandomStream(std::uint64_t seed, std::uint64_t number);
  std::uint64_t bits(std::uint64_t index) const;  // 64 bits of draw `index`
  double uniform(std::uint64_t index) const;      // [0, 1), 53 bits
  double normal(std::uint64_t index) const;  // mean 0, variance 1; Box-Muller on pairs of draws
  std::uint64_t below(std::uint64_t index, std::uint64_t bound) const;  // [0, bound), bound > 0

  // out[i] = the draw of index begin + i, the same bits as the single call (floats: that double,
  // rounded, so a uniform may be 1). About 12 ns a normal number.
  void fill_uniform(std::uint64_t begin, std::span<float> out) const;
  void fill_uniform(std::uint64_t begin, std::span<double> out) const;
  void fill_normal(std::uint64_t begin, std::span<float> out) const;
  void fill_normal(std::uint64_t begin, std::span<double> out) const;

 private:
  PhiloxBlock block(std::uint64_t number) const;
  template <class Draw, class Real>
  void fill(std::uint64_t begin, std::span<Real> out) const;

  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 2> high_;  // upper half of the counter
};

// 64-bit hash of a string, the same on every machine (XXH3).
std::uint64_t stable_hash(std::string_view text);

}  // namespace quatrain
