// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/checksum.h"

#include <fmt/format.h>

// Why: compiled into this file for this machine, it is three times as fast as the library.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <iterator>

namespace quatrain {
namespace {

Checksum from(XXH128_hash_t hash) { return {hash.high64, hash.low64}; }

std::optional<std::uint64_t> number_of(std::string_view digits) {
  std::uint64_t value = 0;
  for (const char c : digits) {
    const bool decimal = c >= '0' && c <= '9';
    if (!decimal && !(c >= 'a' && c <= 'f')) return std::nullopt;
    value = value << 4 | static_cast<std::uint64_t>(decimal ? c - '0' : c - 'a' + 10);
  }
  return value;
}

}  // namespace

Checksum checksum(std::span<const std::byte> bytes) {
  return from(XXH3_128bits(bytes.data(), bytes.size()));
}

void append_hex(std::string& out, const Checksum& sum) {
  fmt::format_to(std::back_inserter(out), "{:016x}{:016x}", sum.high, sum.low);
}

std::optional<Checksum> checksum_from_hex(std::string_view digits) {
  if (digits.size() != kChecksumDigits) return std::nullopt;
  const auto high = number_of(digits.substr(0, kChecksumDigits / 2));
  const auto low = number_of(digits.substr(kChecksumDigits / 2));
  if (!high || !low) return std::nullopt;
  return Checksum{*high, *low};
}

struct Hasher::State {
  XXH3_state_t xxh;
};

Hasher::Hasher() : state_(std::make_unique<State>()) {
  XXH3_INITSTATE(&state_->xxh);
  reset();
}
Hasher::~Hasher() = default;

void Hasher::reset() { XXH3_128bits_reset(&state_->xxh); }

void Hasher::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
}

Checksum Hasher::sum() const { return from(XXH3_128bits_digest(&state_->xxh)); }

}  // namespace quatrain
