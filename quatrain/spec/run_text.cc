// SPDX-License-Identifier: Apache-2.0
// A configuration written out, and the help of its keys; both walk the parser's table.
#include <fmt/core.h>

#include <algorithm>

#include "quatrain/spec/model_io.h"
#include "quatrain/spec/model_keys.h"
#include "quatrain/spec/run_keys.h"
#include "quatrain/spec/toml_document.h"

namespace quatrain {
namespace {

using Json = nlohmann::json;

void write_model(const ModelSpec& spec, std::string& out) {
  const Json keys = Json::parse(to_hub_json(spec));
  for (const auto& [key, value] : keys.items()) {
    if (value.is_null() || !find_model_key(key)) continue;
    out += fmt::format("{} = {}\n", key, to_toml_value(value));
  }
}

std::string unit_and_rule(const Key& key) {
  std::string text(key.unit);
  const std::string rule = allowed(key);
  if (!rule.empty()) text += (text.empty() ? "" : "; ") + rule;
  return text.empty() ? "" : " (" + text + ")";
}

std::string help_line(std::string_view name, std::string_view type, std::string_view fallback,
                      const std::string& help) {
  return fmt::format("  {:<24} {:<16} {:<14} {}\n", name, type, fallback, help);
}

std::string_view model_type_name(KeyType type) {
  switch (type) {
    case KeyType::kInt:
      return "integer";
    case KeyType::kFloat:
      return "number";
    case KeyType::kBool:
      return "boolean";
    case KeyType::kString:
      return "string";
    case KeyType::kIntList:
      return "list of integers";
    case KeyType::kStringList:
      return "list of strings";
    case KeyType::kIntOrList:
      return "integer or list";
    case KeyType::kTable:
      return "table";
  }
  return "";
}

void model_help(std::string& out) {
  out += "  The keys of a Hugging Face config.json; families in brackets:\n";
  for (const ModelKey& key : model_keys()) {
    std::string help(key.help);
    if (!key.aliases.empty()) help += fmt::format("; also {}", key.aliases);
    if (!key.families.empty()) help += fmt::format(" [{}]", key.families);
    const bool fits = key.fallback.size() <= 14;
    if (!fits) help += fmt::format("; default: {}", key.fallback);
    out += help_line(key.name, model_type_name(key.type), fits ? key.fallback : "", help);
  }
}

}  // namespace

std::string to_toml(const RunConfig& config) {
  RunDraft draft;
  draft.config = config;
  std::string out;
  for (std::string_view section : run_sections()) {
    out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    for (const Key& key : run_keys()) {
      if (key.section != section || key.input_only) continue;
      out += fmt::format("{} = {}\n", key.name, to_toml_value(value_of(key.field(draft))));
    }
    if (section == "model") write_model(config.model, out);
  }
  return out;
}

std::string help_config() {
  RunDraft defaults;
  std::string out =
      "Keys of a run's TOML file: type, default, meaning (unit; what is allowed).\n"
      "Any two of micro_batch, accumulation and global_batch give the third.\n";
  for (std::string_view section : run_sections()) {
    out += fmt::format("\n[{}]\n", section);
    for (const Key& key : run_keys()) {
      if (key.section != section) continue;
      const Field field = key.field(defaults);
      out += help_line(key.name, type_name(field), to_toml_value(value_of(field)),
                       std::string(key.help) + unit_and_rule(key));
    }
    if (section == "model") model_help(out);
  }
  return out;
}

}  // namespace quatrain
