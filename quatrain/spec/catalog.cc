// SPDX-License-Identifier: Apache-2.0
// The catalogue of models: configs/catalog/models/<name>.toml.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "quatrain/base/file.h"
#include "quatrain/base/text.h"
#include "quatrain/spec/model_io.h"
#include "quatrain/spec/model_keys.h"
#include "quatrain/spec/toml_document.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct File {
  Json keys;  // canonical, without parameters and source
  std::optional<std::int64_t> parameters;
  Problems problems;
};

std::string unknown_entry(std::string_view name) {
  const auto names = catalog_models();
  const auto near = nearest(name, names);
  const std::string hint =
      near.empty() ? "entries: " + join(names, " ") : "did you mean " + join(near, ", ") + "?";
  return fmt::format("the catalogue has no model \"{}\" (in {}); {}", name,
                     (catalog_folder() / "models").string(), hint);
}

File read_keys(const fs::path& path) {
  TomlDocument document = parse_toml(read_file(path), path.string());
  throw_if_any(document.problems);
  File file;
  if (document.root.contains("parameters")) {
    file.parameters = document.root["parameters"].get<std::int64_t>();
  }
  document.root.erase("parameters");
  document.root.erase("source");
  const Locate where = [&](const std::string& key) {
    return fmt::format("{}:{}: {}", path.string(), document.lines[key], key);
  };
  for (const auto& [key, value] : document.root.items()) {
    if (find_model_key(key)) continue;
    file.problems.push_back({where(key), fmt::format("unknown key {}", key), ""});
  }
  file.keys = document.root;
  canonicalise(file.keys, where, file.problems);
  return file;
}

File read_entry(std::string_view name) {
  // A name, not a path: it may not leave the folder.
  const auto names = catalog_models();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    throw ConfigError(unknown_entry(name));
  }
  return read_keys(catalog_folder() / "models" / (std::string(name) + ".toml"));
}

}  // namespace

fs::path catalog_folder() {
  if (const char* given = std::getenv("QUATRAIN_CATALOG"); given != nullptr && *given != '\0') {
    return given;
  }
  std::error_code ignored;
  const fs::path binary = fs::read_symlink("/proc/self/exe", ignored);
  const fs::path installed = binary.parent_path().parent_path() / "share" / "quatrain" / "catalog";
  if (!binary.empty() && fs::is_directory(installed / "models", ignored)) return installed;
  return fs::path(QUATRAIN_SOURCE_CATALOG);
}

std::vector<std::string> catalog_models() {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(catalog_folder() / "models", ignored)) {
    if (entry.path().extension() == ".toml") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Json catalog_keys(std::string_view name) {
  File file = read_entry(name);
  throw_if_any(file.problems);
  return file.keys;
}

CatalogEntry catalog_model(std::string_view name) {
  File file = read_entry(name);
  const Locate where = [&](const std::string& key) {
    return fmt::format("catalogue entry {}: {}", name, key);
  };
  CatalogEntry entry{std::string(name), model_from_keys(file.keys, where, file.problems),
                     file.parameters};
  entry.spec.name = name;
  for (const Problem& problem : check(entry.spec)) file.problems.push_back(problem);
  throw_if_any(file.problems);
  return entry;
}

ModelSpec find_model(std::string_view name_or_path) {
  const std::vector<std::string> names = catalog_models();
  fs::path path(name_or_path);
  std::error_code ignored;
  if (std::find(names.begin(), names.end(), name_or_path) != names.end() ||
      !fs::exists(path, ignored)) {
    return catalog_model(name_or_path).spec;
  }
  if (fs::is_directory(path, ignored)) path /= "config.json";
  ModelResult result;
  if (path.extension() == ".toml") {
    File file = read_keys(path);
    const Locate where = [&](const std::string& key) { return path.string() + ": " + key; };
    result = {model_from_keys(file.keys, where, file.problems), std::move(file.problems)};
  } else {
    result = model_from_hub_json(read_file(path), path.string());
  }
  throw_if_any(result.problems);
  throw_if_any(check(result.spec));
  result.spec.name = name_or_path;
  return result.spec;
}

}  // namespace quatrain
