// SPDX-License-Identifier: Apache-2.0
// What writer and reader of the manifest share.
#pragma once
#include <string>
#include <string_view>

#include "quatrain/checkpoint/checksum.h"

namespace quatrain {

inline constexpr std::string_view kManifestFormat = "quatrain checkpoint";

// The last member of the manifest is the checksum of all text before it. It is always this long,
// so that a reader finds it without parsing.
inline constexpr std::string_view kTailBegin = ",\n\"manifest_checksum\":\"";
inline constexpr std::string_view kTailEnd = "\"}\n";
inline constexpr std::size_t kTailBytes = kTailBegin.size() + kChecksumDigits + kTailEnd.size();

inline std::string manifest_tail(std::string_view body) {
  std::string tail(kTailBegin);
  append_hex(tail, checksum(body));
  tail += kTailEnd;
  return tail;
}

}  // namespace quatrain
