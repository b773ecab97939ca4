// SPDX-License-Identifier: Apache-2.0
// Values of keys: from a file into a field, from a field into a file, and against the table's
// rules.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "quatrain/base/text.h"
#include "quatrain/spec/run_keys.h"
#include "quatrain/spec/toml_document.h"

namespace quatrain {
namespace {

using Json = nlohmann::json;

std::string expected(std::string_view what, const Json& got) {
  return fmt::format("expected {}, got {}", what, type_in_words(got));
}

template <class Int>
std::string assign_int(Int& field, const Json& value) {
  if (!value.is_number_integer()) return expected("an integer", value);
  const auto wide = value.get<std::int64_t>();
  if (!std::in_range<Int>(wide)) return fmt::format("{} does not fit", wide);
  field = static_cast<Int>(wide);
  return "";
}

template <class T>
std::string assign_name(T& field, const Json& value, std::optional<T> (*parse)(std::string_view),
                        const std::vector<std::string>& names) {
  if (!value.is_string()) return expected("a string", value);
  const auto text = value.get<std::string>();
  if (const auto parsed = parse(text)) {
    field = *parsed;
    return "";
  }
  const auto near = nearest(text, names, 1);
  return fmt::format("\"{}\" is not known{}; one of {}", text,
                     near.empty() ? "" : ", did you mean \"" + near[0] + "\"?", join(names, ", "));
}

std::string assign_path(std::vector<DataPath>& field, const Json& item) {
  if (item.is_string()) {
    field.push_back({item.get<std::string>(), 1.0});
    return "";
  }
  if (!item.is_object()) return expected("{ path, weight } or a path", item);
  DataPath path;
  for (const auto& [key, value] : item.items()) {
    if (key == "path" && value.is_string()) {
      path.path = value.get<std::string>();
    } else if (key == "weight" && value.is_number()) {
      path.weight = value.get<double>();
    } else if (key == "path" || key == "weight") {
      return key + ": " + expected(key == "path" ? "a string" : "a number", value);
    } else {
      return fmt::format("unknown key {}; keys: path, weight", key);
    }
  }
  if (path.path.empty()) return "path is missing";
  field.push_back(path);
  return "";
}

std::string assign_to(std::string& field, const Json& value) {
  if (!value.is_string()) return expected("a string", value);
  field = value.get<std::string>();
  return "";
}
std::string assign_to(bool& field, const Json& value) {
  if (!value.is_boolean()) return expected("true or false", value);
  field = value.get<bool>();
  return "";
}
std::string assign_to(int& field, const Json& value) { return assign_int(field, value); }
std::string assign_to(std::int64_t& field, const Json& value) { return assign_int(field, value); }
std::string assign_to(std::uint64_t& field, const Json& value) { return assign_int(field, value); }
std::string assign_to(double& field, const Json& value) {
  if (!value.is_number()) return expected("a number", value);
  field = value.get<double>();
  return "";
}
std::string assign_to(Dtype& field, const Json& value) {
  return assign_name(field, value, dtype_from_name, {"float32", "bfloat16", "float64"});
}
std::string assign_to(Recompute& field, const Json& value) {
  return assign_name(field, value, recompute_from_name, {"none", "selective", "full"});
}
std::string assign_to(std::vector<std::string>& field, const Json& value) {
  const auto is_string = [](const Json& item) { return item.is_string(); };
  if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_string)) {
    return expected("a list of strings", value);
  }
  field = value.get<std::vector<std::string>>();
  return "";
}
std::string assign_to(std::vector<std::int64_t>& field, const Json& value) {
  const auto is_int = [](const Json& item) { return item.is_number_integer(); };
  if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_int)) {
    return expected("a list of integers", value);
  }
  field = value.get<std::vector<std::int64_t>>();
  return "";
}
std::string assign_to(std::vector<DataPath>& field, const Json& value) {
  field.clear();
  if (!value.is_array()) return assign_path(field, value);
  for (const Json& item : value) {
    if (std::string wrong = assign_path(field, item); !wrong.empty()) return wrong;
  }
  return "";
}

struct Describe {
  std::string_view operator()(const std::string*) const { return "string"; }
  std::string_view operator()(const bool*) const { return "boolean"; }
  std::string_view operator()(const int*) const { return "integer"; }
  std::string_view operator()(const std::int64_t*) const { return "integer"; }
  std::string_view operator()(const std::uint64_t*) const { return "integer"; }
  std::string_view operator()(const double*) const { return "number"; }
  std::string_view operator()(const Dtype*) const { return "string"; }
  std::string_view operator()(const Recompute*) const { return "string"; }
  std::string_view operator()(const std::vector<std::string>*) const { return "list of strings"; }
  std::string_view operator()(const std::vector<std::int64_t>*) const { return "list of integers"; }
  std::string_view operator()(const std::vector<DataPath>*) const { return "list of data"; }
};

struct ToJson {
  template <class T>
  Json operator()(const T* field) const {
    return *field;
  }
  Json operator()(const Dtype* field) const { return std::string(name(*field)); }
  Json operator()(const Recompute* field) const { return std::string(name(*field)); }
  Json operator()(const std::vector<DataPath>* field) const {
    Json list = Json::array();
    for (const DataPath& item : *field)
      list.push_back({{"path", item.path}, {"weight", item.weight}});
    return list;
  }
};

std::string broken_range(const Key& key, double value) {
  const Bounds& range = *key.range;
  const bool low = range.least_open ? value > range.least : value >= range.least;
  const bool high = range.most_open ? value < range.most : value <= range.most;
  if (low && high && std::isfinite(value)) return "";
  return fmt::format("{} = {} is out of range", key.name, value);
}

// A choice that ends in capitals ("file:PATH") stands for whatever begins as it does.
bool is_choice(const Key& key, const std::string& text) {
  return std::any_of(key.choices.begin(), key.choices.end(), [&](std::string_view choice) {
    const std::size_t prefix = choice.find("PATH");
    if (prefix == std::string_view::npos) return text == choice;
    return text.starts_with(choice.substr(0, prefix)) && text.size() > prefix;
  });
}

void check_key(const Key& key, const Field& field, Problems& problems) {
  const std::string where = fmt::format("{}.{}", key.section, key.name);
  if (const auto* text = std::get_if<std::string*>(&field); text && !key.choices.empty()) {
    if (is_choice(key, **text)) return;
    const std::vector<std::string> names(key.choices.begin(), key.choices.end());
    const auto near = nearest(**text, names, 1);
    problems.push_back(
        {where, fmt::format("{} = \"{}\" is not known", key.name, **text),
         (near.empty() || near[0].empty() ? "" : "did you mean \"" + near[0] + "\"? ") +
             allowed(key)});
    return;
  }
  if (!key.range) return;
  const Json value = value_of(field);
  const std::string wrong = broken_range(key, value.get<double>());
  if (!wrong.empty()) problems.push_back({where, wrong, allowed(key)});
}

}  // namespace

std::string_view type_name(const Field& field) { return std::visit(Describe{}, field); }

std::string assign(const Field& field, const Json& value) {
  return std::visit([&value](auto* target) { return assign_to(*target, value); }, field);
}

Json value_of(const Field& field) { return std::visit(ToJson{}, field); }

Problems check_table(const RunConfig& config) {
  RunDraft draft;
  draft.config = config;
  Problems problems;
  for (const Key& key : run_keys()) check_key(key, key.field(draft), problems);
  for (const auto* list : {&config.data.train, &config.data.validation}) {
    for (const DataPath& item : *list) {
      if (item.weight > 0.0 && std::isfinite(item.weight)) continue;
      problems.push_back({list == &config.data.train ? "data.train" : "data.validation",
                          fmt::format("weight = {} of {} is out of range", item.weight, item.path),
                          "0 < weight"});
    }
  }
  return problems;
}

}  // namespace quatrain
