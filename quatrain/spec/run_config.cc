// SPDX-License-Identifier: Apache-2.0
// Reads a run's TOML: keys through the table, overrides from the command line, the model from the
// catalogue, a Hugging Face folder or its keys. Collects every problem, in the order of the lines.
#include "quatrain/spec/run_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "quatrain/base/file.h"
#include "quatrain/base/text.h"
#include "quatrain/spec/model_io.h"
#include "quatrain/spec/model_keys.h"
#include "quatrain/spec/run_check.h"
#include "quatrain/spec/run_keys.h"
#include "quatrain/spec/suggest.h"
#include "quatrain/spec/toml_document.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class ConfigReader {
 public:
  ConfigReader(std::string_view toml, std::string_view name) : text_(toml), name_(name) {}

  RunConfigResult run(const std::vector<std::string>& overrides, int world) {
    TomlDocument document = parse_toml(text_, name_);
    if (!document.problems.empty()) return {{}, std::move(document.problems)};
    collect(document);
    for (const std::string& text : overrides) add_override(text);
    for (const auto& [path, entry] : entries_) set(entry);
    const bool model_known = resolve_model();
    RunConfig& config = draft_.config;
    Problems later = resolve_numbers(config, world);
    std::set<std::string> reported;  // not the same place twice
    for (const Problem& problem : later) reported.insert(problem.where);
    for (Problem& problem : check_run(config, model_known)) {
      if (!reported.contains(problem.where)) later.push_back(std::move(problem));
    }
    for (Problem& problem : later) {
      problem.where = place(problem.where);
      problems_.push_back(std::move(problem));
    }
    sort_by_line();
    return {std::move(config), std::move(problems_)};
  }

 private:
  struct Entry {
    std::string section;
    std::string key;
    Json value;
    std::string where;  // "run.toml:12" or "command line"
  };

  std::string at_line(const TomlDocument& document, const std::string& path) const {
    const auto line = document.lines.find(path);
    return line == document.lines.end() ? name_ : fmt::format("{}:{}", name_, line->second);
  }

  void collect(const TomlDocument& document) {
    for (const auto& [section, table] : document.root.items()) {
      const std::string where = at_line(document, section);
      const auto& sections = run_sections();
      if (!table.is_object()) {
        problems_.push_back(
            {where + ": " + section, "key outside any section", suggest_section_of(section)});
      } else if (std::find(sections.begin(), sections.end(), section) == sections.end()) {
        problems_.push_back(
            {where, fmt::format("unknown section [{}]", section), suggest_section(section)});
      } else {
        section_where_[section] = where;
        for (const auto& [key, value] : table.items()) {
          const std::string path = section + "." + key;
          entries_[path] = {section, key, value, at_line(document, path)};
        }
      }
    }
  }

  void add_override(const std::string& text) {
    const std::size_t equals = text.find('=');
    const std::string path = text.substr(0, equals);
    const std::size_t dot = path.find('.');
    const auto refuse = [&](std::string what, std::string hint) {
      problems_.push_back({"command line: " + text, std::move(what), std::move(hint)});
    };
    if (equals == std::string::npos || dot == std::string::npos) {
      return refuse("not an override", "write section.key=value, such as optimizer.lr=1e-3");
    }
    const std::string section = path.substr(0, dot);
    const std::string key = path.substr(dot + 1);
    const auto& sections = run_sections();
    if (std::find(sections.begin(), sections.end(), section) == sections.end()) {
      return refuse(fmt::format("unknown section [{}]", section), suggest_section(section));
    }
    if (key.find('.') != std::string::npos) {
      return refuse("keys inside tables cannot be set alone",
                    fmt::format("give the whole table: {}.{}={{ ... }}", section,
                                key.substr(0, key.find('.'))));
    }
    const std::string raw = text.substr(equals + 1);
    Json value = parse_toml_value(raw).value_or(Json(raw));
    if (!value.is_string() && wants_string(section, key)) value = raw;
    entries_[path] = {section, key, value, "command line"};
  }

  bool wants_string(const std::string& section, const std::string& key) {
    if (const Key* known = find_run_key(section, key)) {
      return type_name(known->field(draft_)) == "string";
    }
    const ModelKey* known = section == "model" ? find_model_key(key) : nullptr;
    return known != nullptr && known->type == KeyType::kString;
  }

  void set(const Entry& entry) {
    const std::string where = fmt::format("{}: {}.{}", entry.where, entry.section, entry.key);
    if (const Key* key = find_run_key(entry.section, entry.key)) {
      const std::string wrong = assign(key->field(draft_), entry.value);
      if (!wrong.empty()) {
        problems_.push_back(
            {where, fmt::format("{} = {}", entry.key, to_toml_value(entry.value)), wrong});
      }
    } else if (entry.section == "model" && find_model_key(entry.key)) {
      model_keys_[entry.key] = entry.value;
    } else if (entry.section != "model" || !is_ignored_model_key(entry.key)) {
      problems_.push_back(
          {where, fmt::format("unknown key {}", entry.key), suggest_key(entry.section, entry.key)});
    }
  }

  // "training.steps" -> "run.toml:12: training.steps"; keys that are not in the file: its name.
  std::string place(const std::string& path) const {
    if (const auto found = entries_.find(path); found != entries_.end()) {
      return fmt::format("{}: {}", found->second.where, path);
    }
    const std::size_t dot = path.find('.');
    const std::string section = path.substr(0, dot);
    if (section == "model" && dot != std::string::npos) {  // written under another family's name
      const ModelKey* wanted = find_model_key(path.substr(dot + 1));
      for (const auto& [key, value] : model_keys_.items()) {
        if (wanted == nullptr || find_model_key(key) != wanted) continue;
        return fmt::format("{}: model.{}", entries_.at("model." + key).where, key);
      }
      for (const char* source : {"model.name", "model.hf"}) {
        if (const auto found = entries_.find(source); found != entries_.end()) {
          return fmt::format("{}: {}", found->second.where, path);
        }
      }
    }
    const auto line = section_where_.find(section);
    return fmt::format("{}: {}", line == section_where_.end() ? name_ : line->second, path);
  }

  void model_problem(const char* key, std::string what, std::string hint = "") {
    problems_.push_back({place(fmt::format("model.{}", key)), std::move(what), std::move(hint)});
  }

  // A folder beside the file, or else as it is given.
  fs::path beside(const std::string& given) const {
    const fs::path path = fs::path(name_).parent_path() / given;
    std::error_code ignored;
    return fs::exists(path, ignored) ? path : fs::path(given);
  }

  // The keys that name or hf stand for; nothing after a problem.
  std::optional<Json> base_keys() {
    try {
      if (!draft_.model_name.empty() && !draft_.model_hf.empty()) {
        model_problem("hf", "both name and hf are given", "keep one");
        return std::nullopt;
      }
      if (!draft_.model_name.empty()) return catalog_keys(draft_.model_name);
      if (draft_.model_hf.empty()) return Json::object();
      fs::path path = beside(draft_.model_hf);
      if (path.extension() != ".json") path /= "config.json";
      Json keys = Json::parse(read_file(path), nullptr, false);
      if (keys.is_object()) {
        const Locate where = [&](const std::string& key) { return path.string() + ": " + key; };
        canonicalise(keys, where, problems_);
        return keys;
      }
      model_problem("hf", fmt::format("{} is not a JSON object", path.string()),
                    "expected a Hugging Face config.json");
    } catch (const ConfigError& error) {
      model_problem("name", error.what());
    } catch (const StorageError& error) {
      model_problem("hf", error.what(), "expected a folder with a config.json");
    }
    return std::nullopt;
  }

  bool resolve_model() {
    const std::size_t before = problems_.size();
    std::string label = draft_.config.model.name;
    if (label.empty()) label = draft_.model_name;
    if (label.empty()) label = fs::path(draft_.model_hf).filename().string();
    std::optional<Json> keys = base_keys();
    const Locate where = [this](const std::string& key) { return place("model." + key); };
    Json own = model_keys_;
    canonicalise(own, where, problems_);
    if (!keys) return false;
    if (own.contains("rope_scaling") && own["rope_scaling"].is_null()) own.erase("rope_scaling");
    keys->update(own);
    draft_.config.model = model_from_keys(*keys, where, problems_);
    draft_.config.model.name = label.empty() ? "model" : label;
    if (draft_.config.weights != "none") {
      draft_.config.weights =
          fs::absolute(beside(draft_.config.weights)).lexically_normal().string();
    }
    refuse_foreign_keys(keys->value("model_type", Json()));
    return problems_.size() == before;
  }

  // Keys written in the file that the family does not read would be ignored: refused.
  void refuse_foreign_keys(const Json& family) {
    if (!family.is_string() || !family_from_name(family.get<std::string>())) return;
    for (const auto& [key, value] : model_keys_.items()) {
      const ModelKey& known = *find_model_key(key);
      if (applies_to(known, family.get<std::string>())) continue;
      problems_.push_back({place("model." + key),
                           fmt::format("{} has no key {}", family.get<std::string>(), key),
                           fmt::format("it belongs to {}", known.families)});
    }
  }

  void sort_by_line() {
    const auto line = [this](const Problem& problem) {
      const std::string prefix = name_ + ":";
      if (!problem.where.starts_with(prefix)) return 0;
      return std::atoi(problem.where.c_str() + prefix.size());
    };
    std::stable_sort(problems_.begin(), problems_.end(),
                     [&](const Problem& a, const Problem& b) { return line(a) < line(b); });
  }

  std::string_view text_;
  std::string name_;
  std::map<std::string, Entry> entries_;  // by "section.key"
  std::map<std::string, std::string> section_where_;
  Json model_keys_ = Json::object();
  RunDraft draft_;
  Problems problems_;
};

}  // namespace

RunConfigResult parse_run_config(std::string_view toml, std::string_view name,
                                 const std::vector<std::string>& overrides, int world) {
  return ConfigReader(toml, name).run(overrides, world);
}

RunConfigResult read_run_config(const std::filesystem::path& file,
                                const std::vector<std::string>& overrides, int world) {
  return parse_run_config(read_file(file), file.string(), overrides, world);
}

}  // namespace quatrain
