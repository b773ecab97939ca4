// SPDX-License-Identifier: Apache-2.0
// Megatron's .idx: "MMIDIDX\0\0" | u64 version 1 | u8 type code | u64 sequences | u64 documents + 1
// | i32 lengths | i64 byte pointers | i64 document boundaries (in sequences) | optional i8 modes.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "quatrain/data/token_type.h"

namespace quatrain {

inline constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};
inline constexpr std::int64_t kMegatronHeaderBytes = 34;

struct MegatronIndex {
  TokenType type = TokenType::kU16;
  std::int64_t tokens = 0;
  std::vector<std::int64_t> document_begins;  // in tokens; `tokens` at the end
};

// Every rule is checked before anything is believed: sizes, types, pointers that lay the sequences
// end to end over exactly `bin_bytes`. Throws DataError naming file and rule.
MegatronIndex read_megatron_index(const std::filesystem::path& idx, std::int64_t bin_bytes);

// Megatron's code of a type; -1 for a type it has none for.
int megatron_code(TokenType type);

}  // namespace quatrain
