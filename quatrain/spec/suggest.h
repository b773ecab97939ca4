// SPDX-License-Identifier: Apache-2.0
// What the user may have meant by an unknown key or section. Private to spec/.
#pragma once
#include <string>
#include <string_view>

namespace quatrain {

// "did you mean lr?", "this key belongs in [optimizer]", or the keys there are.
std::string suggest_key(std::string_view section, std::string_view key);
std::string suggest_section(std::string_view section);
// Of a key that stands before the first section.
std::string suggest_section_of(std::string_view key);

}  // namespace quatrain
