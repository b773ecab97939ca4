// SPDX-License-Identifier: Apache-2.0
// The keys of config.json that we read: one table for parsing, unknown-key detection, writing and
// help. Private to spec/.
#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/spec/model_io.h"

namespace quatrain {

enum class KeyType : std::uint8_t {
  kInt,
  kFloat,
  kBool,
  kString,
  kIntList,
  kStringList,
  kIntOrList,
  kTable
};
std::string_view in_words(KeyType type);  // "an integer", "a list of strings"
bool has_type(const nlohmann::json& value, KeyType type);

struct ModelKey {
  std::string_view name;     // as Llama's config.json has it
  std::string_view aliases;  // other families' names for it, separated by spaces
  KeyType type;
  std::string_view families;  // model_types that have it, separated by spaces; empty: all
  std::string_view fallback;  // when absent, in words
  std::string_view help;
};
std::span<const ModelKey> model_keys();
// By name or alias; null when unknown.
const ModelKey* find_model_key(std::string_view name);
// Whether a model of this model_type reads the key.
bool applies_to(const ModelKey& key, std::string_view family);
// Keys of config.json files that change nothing for us.
bool is_ignored_model_key(std::string_view name);

// Place of a key for messages: "run.toml:12: model.hidden_size" or "config.json: hidden_size".
using Locate = std::function<std::string(const std::string& key)>;

// Renames aliases, and rope_parameters (transformers v5) to rope_theta and rope_scaling (v4);
// reports values of the wrong type (and removes them), and pairs that disagree.
void canonicalise(nlohmann::json& keys, const Locate& where, Problems& problems);

// A spec from canonical keys. `problems` holds earlier findings of the same keys, so that a key
// removed for its type is not reported as missing again.
ModelSpec model_from_keys(const nlohmann::json& keys, const Locate& where, Problems& problems);

// The catalogue's keys of an entry, canonical, without `parameters` and `source`.
nlohmann::json catalog_keys(std::string_view name);

// rope_theta and rope_scaling.
Rope rope_from_keys(const nlohmann::json& keys, double default_theta, std::int64_t max_positions,
                    const Locate& where, Problems& problems);
void rope_to_keys(const ModelSpec& spec, nlohmann::json& keys);

}  // namespace quatrain
