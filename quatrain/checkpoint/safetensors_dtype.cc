// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/safetensors_dtype.h"

#include <array>

namespace quatrain {
namespace {

constexpr std::array<SafetensorsDtype, 22> kDtypes{{
    {"BOOL", 8, at::kBool, 0},
    {"F4", 4, std::nullopt, 1},
    {"F6_E2M3", 6, std::nullopt, 2},
    {"F6_E3M2", 6, std::nullopt, 3},
    {"U8", 8, at::kByte, 4},
    {"I8", 8, at::kChar, 5},
    {"F8_E5M2", 8, at::kFloat8_e5m2, 6},
    {"F8_E4M3", 8, at::kFloat8_e4m3fn, 7},
    {"F8_E8M0", 8, at::kFloat8_e8m0fnu, 8},
    {"F8_E4M3FNUZ", 8, at::kFloat8_e4m3fnuz, 9},
    {"F8_E5M2FNUZ", 8, at::kFloat8_e5m2fnuz, 10},
    {"I16", 16, at::kShort, 11},
    {"U16", 16, at::kUInt16, 12},
    {"F16", 16, at::kHalf, 13},
    {"BF16", 16, at::kBFloat16, 14},
    {"I32", 32, at::kInt, 15},
    {"U32", 32, at::kUInt32, 16},
    {"F32", 32, at::kFloat, 17},
    {"C64", 64, at::kComplexFloat, 18},
    {"F64", 64, at::kDouble, 19},
    {"I64", 64, at::kLong, 20},
    {"U64", 64, at::kUInt64, 21},
}};

}  // namespace

const SafetensorsDtype* find_safetensors_dtype(std::string_view name) {
  for (const SafetensorsDtype& dtype : kDtypes) {
    if (dtype.name == name) return &dtype;
  }
  return nullptr;
}

const SafetensorsDtype* find_safetensors_dtype(at::ScalarType scalar) {
  for (const SafetensorsDtype& dtype : kDtypes) {
    if (dtype.scalar == scalar) return &dtype;
  }
  return nullptr;
}

}  // namespace quatrain
