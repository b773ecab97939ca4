// SPDX-License-Identifier: Apache-2.0
// Block by block: each block is accumulated in the first-level cache over all sources and then
// written out, so that memory is read once a source and written once an out, whatever aliases what.
// The inner loops are of fixed length over a local array: every compiler vectorises them.
#include "quatrain/comm/sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "quatrain/base/check.h"

namespace quatrain {
namespace {

constexpr std::int64_t kBlock = 1024;  // elements: 4 KiB of float32
constexpr std::int64_t kSmallBlock = 64;

// bfloat16 as the bits it is: the upper half of a float32.
struct BFloat16Bits {
  std::uint16_t bits;
};

template <class T>
T widen(T value) {
  return value;
}
inline float widen(BFloat16Bits value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

// To nearest, ties to even; every NaN becomes the quiet one. Without branches, for vectors.
inline BFloat16Bits round_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return {static_cast<std::uint16_t>(nan ? 0x7fc0U : rounded)};
}

struct Sum {
  template <class W>
  static W combine(W a, W b) {
    if constexpr (std::is_integral_v<W>) {  // wraps
      using U = std::make_unsigned_t<W>;
      return static_cast<W>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  }
};
struct Max {
  template <class W>
  static W combine(W a, W b) {
    if constexpr (std::is_floating_point_v<W>) return (a > b) | (a != a) ? a : b;
    return a > b ? a : b;
  }
};
struct Min {
  template <class W>
  static W combine(W a, W b) {
    if constexpr (std::is_floating_point_v<W>) return (a < b) | (a != a) ? a : b;
    return a < b ? a : b;
  }
};

template <class T, class Op>
class Reducer {
 public:
  using Wide = decltype(widen(T{}));

  static void run(std::span<std::byte* const> outs, std::span<const std::byte* const> sources,
                  std::int64_t count) {
    std::int64_t begin = 0;
    for (; begin + kBlock <= count; begin += kBlock) block(outs, sources, begin, kBlock);
    for (; begin + kSmallBlock <= count; begin += kSmallBlock) {
      block(outs, sources, begin, kSmallBlock);
    }
    if (begin < count) block(outs, sources, begin, count - begin);
  }

 private:
  // Inlined, so that `size` is a constant but for the last elements.
  [[gnu::always_inline]] static inline void block(std::span<std::byte* const> outs,
                                                  std::span<const std::byte* const> sources,
                                                  std::int64_t begin, std::int64_t size) {
    std::array<Wide, kBlock> sum;
    const T* first = reinterpret_cast<const T*>(sources[0]) + begin;
    for (std::int64_t i = 0; i < size; ++i) sum[at(i)] = widen(first[i]);
    for (const std::byte* bytes : sources.subspan(1)) {
      const T* source = reinterpret_cast<const T*>(bytes) + begin;
      for (std::int64_t i = 0; i < size; ++i)
        sum[at(i)] = Op::combine(sum[at(i)], widen(source[i]));
    }
    if constexpr (std::is_same_v<T, Wide>) {
      write(outs, sum, begin, size);
    } else {
      std::array<T, kBlock> rounded;
      for (std::int64_t i = 0; i < size; ++i) rounded[at(i)] = round_to_bfloat16(sum[at(i)]);
      write(outs, rounded, begin, size);
    }
  }

  static void write(std::span<std::byte* const> outs, const std::array<T, kBlock>& values,
                    std::int64_t begin, std::int64_t size) {
    for (std::byte* out : outs) {
      std::memcpy(out + at(begin) * sizeof(T), values.data(), at(size) * sizeof(T));
    }
  }

  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
};

template <class T>
void reduce(std::span<std::byte* const> outs, std::span<const std::byte* const> sources,
            std::int64_t count, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return Reducer<T, Sum>::run(outs, sources, count);
    case ReduceOp::kMax:
      return Reducer<T, Max>::run(outs, sources, count);
    case ReduceOp::kMin:
      return Reducer<T, Min>::run(outs, sources, count);
  }
}

}  // namespace

bool can_reduce(at::ScalarType dtype) {
  constexpr std::array kDtypes = {at::kDouble, at::kFloat, at::kBFloat16,
                                  at::kLong,   at::kInt,   at::kByte};
  return std::ranges::find(kDtypes, dtype) != kDtypes.end();
}

void reduce_in_order(std::span<std::byte* const> outs, std::span<const std::byte* const> sources,
                     std::int64_t count, at::ScalarType dtype, ReduceOp op) {
  CHECK(!sources.empty(), "a reduction of nothing");
  switch (dtype) {
    case at::kDouble:
      return reduce<double>(outs, sources, count, op);
    case at::kFloat:
      return reduce<float>(outs, sources, count, op);
    case at::kBFloat16:
      return reduce<BFloat16Bits>(outs, sources, count, op);
    case at::kLong:
      return reduce<std::int64_t>(outs, sources, count, op);
    case at::kInt:
      return reduce<std::int32_t>(outs, sources, count, op);
    case at::kByte:
      return reduce<std::uint8_t>(outs, sources, count, op);
    default:
      CHECK(false, "no reduction over ranks of {}", c10::toString(dtype));
  }
}

}  // namespace quatrain
