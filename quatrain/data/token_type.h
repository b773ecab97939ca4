// SPDX-License-Identifier: Apache-2.0
// The integer types that token files store, and one place that turns a run-time type into a
// compile-time one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace quatrain {

enum class TokenType : std::uint8_t { kU8, kI8, kU16, kI16, kI32, kU32, kI64 };

// Calls f with a value of the C++ type that `type` names.
template <class F>
auto with_token_type(TokenType type, F&& f) {
  switch (type) {
    case TokenType::kU8:
      return f(std::uint8_t{});
    case TokenType::kI8:
      return f(std::int8_t{});
    case TokenType::kU16:
      return f(std::uint16_t{});
    case TokenType::kI16:
      return f(std::int16_t{});
    case TokenType::kI32:
      return f(std::int32_t{});
    case TokenType::kU32:
      return f(std::uint32_t{});
    case TokenType::kI64:
      break;
  }
  return f(std::int64_t{});
}

inline std::int64_t width(TokenType type) {
  return with_token_type(type, [](auto id) { return static_cast<std::int64_t>(sizeof(id)); });
}

inline std::string_view name(TokenType type) {
  switch (type) {
    case TokenType::kU8:
      return "u8";
    case TokenType::kI8:
      return "i8";
    case TokenType::kU16:
      return "u16";
    case TokenType::kI16:
      return "i16";
    case TokenType::kI32:
      return "i32";
    case TokenType::kU32:
      return "u32";
    case TokenType::kI64:
      break;
  }
  return "i64";
}

// A little-endian T at `from`, which need not be aligned.
template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

}  // namespace quatrain
