// SPDX-License-Identifier: Apache-2.0
// Numbers with their unit in the type: adding seconds to bytes does not compile.
#pragma once
#include <compare>
#include <cstdint>

namespace quatrain {

template <class Tag, class Rep>
struct Quantity {
  Rep value{};

  friend constexpr auto operator<=>(Quantity, Quantity) = default;
  friend constexpr Quantity operator+(Quantity a, Quantity b) {
    return {static_cast<Rep>(a.value + b.value)};
  }
  friend constexpr Quantity operator-(Quantity a, Quantity b) {
    return {static_cast<Rep>(a.value - b.value)};
  }
  friend constexpr Quantity operator*(Rep k, Quantity a) {
    return {static_cast<Rep>(k * a.value)};
  }
  constexpr Quantity& operator+=(Quantity b) { return *this = *this + b; }
  constexpr Quantity& operator-=(Quantity b) { return *this = *this - b; }
};

using Seconds = Quantity<struct SecondsTag, double>;
using Bytes = Quantity<struct BytesTag, std::int64_t>;
using Flops = Quantity<struct FlopsTag, double>;  // a count, not a rate
using BytesPerSecond = Quantity<struct BytesPerSecondTag, double>;
using FlopsPerSecond = Quantity<struct FlopsPerSecondTag, double>;

constexpr Seconds operator/(Bytes b, BytesPerSecond r) {
  return {static_cast<double>(b.value) / r.value};
}
constexpr Seconds operator/(Flops f, FlopsPerSecond r) { return {f.value / r.value}; }

}  // namespace quatrain
