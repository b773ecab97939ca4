// SPDX-License-Identifier: Apache-2.0
// XXH3 with 128 bits, as xxhash's canonical hexadecimal digest.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace quatrain {

struct Checksum {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend bool operator==(const Checksum&, const Checksum&) = default;
};
inline constexpr std::size_t kChecksumDigits = 32;
inline constexpr std::string_view kChecksumName = "xxh3-128";

Checksum checksum(std::span<const std::byte> bytes);
inline Checksum checksum(std::string_view text) { return checksum(std::as_bytes(std::span(text))); }

void append_hex(std::string& out, const Checksum& sum);  // 32 lower-case digits
// Of exactly 32 lower-case digits; none otherwise.
std::optional<Checksum> checksum_from_hex(std::string_view digits);

// The checksum of bytes that come in parts.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  void reset();
  void add(std::span<const std::byte> bytes);
  Checksum sum() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quatrain
