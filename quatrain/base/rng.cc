// SPDX-License-Identifier: Apache-2.0
// Philox 4x32-10 and the draws made of it. One block gives the draws 2b and 2b+1; a block's two
// normals are the cosine and the sine of one Box-Muller pair. Logarithm, sine and cosine are
// written out in plain double arithmetic (no libm), so that a weight has the same bits on every
// machine and compilers vectorise the bulk calls.
#include "quatrain/base/rng.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "quatrain/base/check.h"

namespace quatrain {
namespace {

__extension__ using Wide = unsigned __int128;

// Multipliers and Weyl constants of Salmon et al., section 5 (philox4x32).
constexpr std::uint64_t kMultiplier0 = 0xD2511F53;
constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9;
constexpr std::uint32_t kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

std::uint32_t low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
std::uint32_t high(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }
std::uint64_t join(std::uint32_t lo, std::uint32_t hi) {
  return static_cast<std::uint64_t>(hi) << 32 | lo;
}

inline PhiloxBlock philox(PhiloxBlock c, std::uint32_t k0, std::uint32_t k1) {
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = kMultiplier0 * c[0];
    const std::uint64_t product1 = kMultiplier1 * c[2];
    c = {high(product1) ^ c[1] ^ k0, low(product1), high(product0) ^ c[3] ^ k1, low(product0)};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return c;
}

// [1, 2) from the upper 52 bits.
inline double one_to_two(std::uint64_t bits) {
  return std::bit_cast<double>(bits >> 12 | 0x3FF0000000000000ULL);
}

// ln x for normal x > 0: x = 2^e m with m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m-1)/(m+1)).
inline double natural_log(double x) {
  constexpr std::uint64_t kSqrtHalf = 0x3FE6A09E667F3BCDULL;
  const std::uint64_t shifted = std::bit_cast<std::uint64_t>(x) - kSqrtHalf;
  // e as a double without an integer conversion: 2^52 + (e + 1024), minus 2^52 + 1024.
  const double e =
      std::bit_cast<double>((((shifted >> 52) + 1024) & 0xFFF) | 0x4330000000000000ULL) -
      4503599627371520.0;
  const double m = std::bit_cast<double>((shifted & 0x000FFFFFFFFFFFFFULL) + kSqrtHalf);
  const double s = (m - 1) / (m + 1);
  const double z = s * s;
  double sum = 1.0 / 23;
  sum = sum * z + 1.0 / 21;
  sum = sum * z + 1.0 / 19;
  sum = sum * z + 1.0 / 17;
  sum = sum * z + 1.0 / 15;
  sum = sum * z + 1.0 / 13;
  sum = sum * z + 1.0 / 11;
  sum = sum * z + 1.0 / 9;
  sum = sum * z + 1.0 / 7;
  sum = sum * z + 1.0 / 5;
  sum = sum * z + 1.0 / 3;
  return e * 0.693147180559945309417 + (2 * s + 2 * s * (z * sum));
}

// sin t and cos t for |t| <= pi/4 (Taylor; the first term left out is below 2^-54).
inline double sine(double t) {
  const double z = t * t;
  double sum = 1.0 / 355687428096000.0;
  sum = sum * z - 1.0 / 1307674368000.0;
  sum = sum * z + 1.0 / 6227020800.0;
  sum = sum * z - 1.0 / 39916800.0;
  sum = sum * z + 1.0 / 362880.0;
  sum = sum * z - 1.0 / 5040.0;
  sum = sum * z + 1.0 / 120.0;
  sum = sum * z - 1.0 / 6.0;
  return t + t * (z * sum);
}
inline double cosine(double t) {
  const double z = t * t;
  double sum = 1.0 / 20922789888000.0;
  sum = sum * z - 1.0 / 87178291200.0;
  sum = sum * z + 1.0 / 479001600.0;
  sum = sum * z - 1.0 / 3628800.0;
  sum = sum * z + 1.0 / 40320.0;
  sum = sum * z - 1.0 / 720.0;
  sum = sum * z + 1.0 / 24.0;
  return 1 - 0.5 * z + z * z * sum;
}

struct Pair {
  double even;
  double odd;
};

// Each draw turns the 128 bits of a block into the values of draws 2b and 2b+1.
struct UniformDraw {
  static Pair of(std::uint64_t a, std::uint64_t b) {
    return {static_cast<double>(a >> 11) * 0x1p-53, static_cast<double>(b >> 11) * 0x1p-53};
  }
};

// Box and Muller (1958): sqrt(-2 ln u) (cos, sin)(2 pi v), u in (0, 1], v in [0, 1).
struct NormalDraw {
  static Pair of(std::uint64_t a, std::uint64_t b) {
    const double radius = std::sqrt(-2 * natural_log(2 - one_to_two(a)));
    // The quarter turn nearest to v, in the low bits of 1.5 * 2^52 + round(4 v).
    const double v = one_to_two(b) - 1;
    constexpr double kRound = 6755399441055744.0;
    const double rounded = 4 * v + kRound;
    const std::uint64_t quarter = std::bit_cast<std::uint64_t>(rounded);
    const double t = (v - 0.25 * (rounded - kRound)) * 6.28318530717958647692;
    const std::uint64_t swap = 0 - (quarter & 1);
    const std::uint64_t s = std::bit_cast<std::uint64_t>(sine(t));
    const std::uint64_t c = std::bit_cast<std::uint64_t>(cosine(t));
    // (cos, sin) after 0, 1, 2, 3 quarter turns: (c, s), (-s, c), (-c, -s), (s, -c).
    const std::uint64_t negative_cos = ((quarter + 1) & 2) << 62;
    const std::uint64_t negative_sin = (quarter & 2) << 62;
    const std::uint64_t x = ((c & ~swap) | (s & swap)) ^ negative_cos;
    const std::uint64_t y = ((s & ~swap) | (c & swap)) ^ negative_sin;
    return {radius * std::bit_cast<double>(x), radius * std::bit_cast<double>(y)};
  }
};

}  // namespace

PhiloxBlock philox4x32_10(PhiloxBlock counter, std::array<std::uint32_t, 2> key) {
  return philox(counter, key[0], key[1]);
}

// Names and numbers are told apart in the key, so that no name can meet a number.
RandomStream::RandomStream(std::uint64_t seed, std::string_view name)
    : key_{low(seed), high(seed)}, high_{low(stable_hash(name)), high(stable_hash(name))} {}

RandomStream::RandomStream(std::uint64_t seed, std::uint64_t number)
    : key_{~low(seed), high(seed)}, high_{low(number), high(number)} {}

PhiloxBlock RandomStream::block(std::uint64_t number) const {
  return philox({low(number), high(number), high_[0], high_[1]}, key_[0], key_[1]);
}

std::uint64_t RandomStream::bits(std::uint64_t index) const {
  const PhiloxBlock b = block(index / 2);
  return index % 2 == 0 ? join(b[0], b[1]) : join(b[2], b[3]);
}

template <class Draw, class Real>
void RandomStream::fill(std::uint64_t begin, std::span<Real> out) const {
  constexpr std::size_t kBlocks = 128;
  std::uint64_t a[kBlocks], b[kBlocks];
  double even[kBlocks], odd[kBlocks];
  double values[2 * kBlocks];
  std::uint64_t first = begin / 2;
  std::size_t skip = begin % 2;
  while (!out.empty()) {
    for (std::size_t i = 0; i < kBlocks; ++i) {
      const PhiloxBlock words = block(first + i);
      a[i] = join(words[0], words[1]);
      b[i] = join(words[2], words[3]);
    }
    for (std::size_t i = 0; i < kBlocks; ++i) {
      const Pair pair = Draw::of(a[i], b[i]);
      even[i] = pair.even;
      odd[i] = pair.odd;
    }
    for (std::size_t i = 0; i < kBlocks; ++i) {
      values[2 * i] = even[i];
      values[2 * i + 1] = odd[i];
    }
    const std::size_t count = std::min(out.size(), 2 * kBlocks - skip);
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<Real>(values[skip + i]);
    out = out.subspan(count);
    first += kBlocks;
    skip = 0;
  }
}

double RandomStream::uniform(std::uint64_t index) const {
  return static_cast<double>(bits(index) >> 11) * 0x1p-53;
}

double RandomStream::normal(std::uint64_t index) const {
  const PhiloxBlock b = block(index / 2);
  const Pair pair = NormalDraw::of(join(b[0], b[1]), join(b[2], b[3]));
  return index % 2 == 0 ? pair.even : pair.odd;
}

// Lemire's multiply-high (arXiv:1805.10941) without its rejection: the bias is below bound / 2^64.
std::uint64_t RandomStream::below(std::uint64_t index, std::uint64_t bound) const {
  CHECK(bound > 0, "below(0) has no value");
  return static_cast<std::uint64_t>(static_cast<Wide>(bits(index)) * bound >> 64);
}

void RandomStream::fill_uniform(std::uint64_t begin, std::span<float> out) const {
  fill<UniformDraw>(begin, out);
}
void RandomStream::fill_uniform(std::uint64_t begin, std::span<double> out) const {
  fill<UniformDraw>(begin, out);
}
void RandomStream::fill_normal(std::uint64_t begin, std::span<float> out) const {
  fill<NormalDraw>(begin, out);
}
void RandomStream::fill_normal(std::uint64_t begin, std::span<double> out) const {
  fill<NormalDraw>(begin, out);
}

std::uint64_t stable_hash(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

}  // namespace quatrain
