// SPDX-License-Identifier: Apache-2.0
// A TOML file as a JSON value with the line of every key, and back: the one place that knows the
// TOML library. Dates become strings; infinities and NaN stay numbers.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "quatrain/base/error.h"

namespace quatrain {

struct TomlDocument {
  nlohmann::json root = nlohmann::json::object();
  std::map<std::string, int> lines;  // "section.key", "data.train.0.path" -> line, from 1
  Problems problems;                 // a syntax error: then root is empty
};
TomlDocument parse_toml(std::string_view text, std::string_view name);

// One value as it stands right of "="; nothing when it is not TOML.
std::optional<nlohmann::json> parse_toml_value(std::string_view text);

// The value as TOML; shortest digits that read back the same. Null members are left out.
std::string to_toml_value(const nlohmann::json& value);

// "an integer", "a string": for messages.
std::string_view type_in_words(const nlohmann::json& value);

}  // namespace quatrain
