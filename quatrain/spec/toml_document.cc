// SPDX-License-Identifier: Apache-2.0
// TOML to JSON through toml++, keeping source positions.
#include "quatrain/spec/toml_document.h"

#include <fmt/core.h>

#include <cmath>
#include <sstream>
#include <stdexcept>

// toml++ asserts what some malformed texts break: for a reader of users' files that is an error
// like any other, in every build.
namespace {
constexpr void toml_must(bool holds) {
  if (!holds) throw std::logic_error("a character that cannot stand there");
}
}  // namespace
#undef NDEBUG
#define TOML_ASSERT(expr) toml_must(static_cast<bool>(expr))
// Its tables of characters call unreachable what they reach for a letter such as U+02A0 outside of
// a string: it is of no class.
#include <toml++/impl/forward_declarations.h>
#pragma push_macro("TOML_UNREACHABLE")
#undef TOML_UNREACHABLE
#define TOML_UNREACHABLE return false
#include <toml++/impl/unicode.h>
#pragma pop_macro("TOML_UNREACHABLE")
#include <toml++/toml.h>

namespace quatrain {
namespace {

using Json = nlohmann::json;

class Converter {
 public:
  explicit Converter(std::map<std::string, int>* lines) : lines_(lines) {}

  Json convert(const toml::node& node, const std::string& path) {
    if (lines_ != nullptr) (*lines_)[path] = static_cast<int>(node.source().begin.line);
    if (const auto* table = node.as_table()) return object(*table, path);
    if (const auto* array = node.as_array()) {
      Json list = Json::array();
      for (std::size_t i = 0; i < array->size(); ++i) {
        list.push_back(convert(*array->get(i), fmt::format("{}.{}", path, i)));
      }
      return list;
    }
    if (const auto* value = node.as_integer()) return value->get();
    if (const auto* value = node.as_floating_point()) return value->get();
    if (const auto* value = node.as_boolean()) return value->get();
    if (const auto* value = node.as_string()) return value->get();
    std::ostringstream date;
    node.visit([&date](const auto& value) {
      if constexpr (toml::is_chronological<decltype(value)>) date << value.get();
    });
    return date.str();
  }

  Json object(const toml::table& table, const std::string& path) {
    Json result = Json::object();
    for (const auto& [key, child] : table) {
      const std::string name(key.str());
      const std::string full = path.empty() ? name : path + "." + name;
      result[name] = convert(child, full);
      if (lines_ != nullptr) (*lines_)[full] = static_cast<int>(key.source().begin.line);
    }
    return result;
  }

 private:
  std::map<std::string, int>* lines_;
};

std::string quoted(const std::string& text) {
  // JSON's escapes are TOML's, except DEL, which TOML wants escaped.
  std::string out;
  for (char c : Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)) {
    if (c == '\x7f') {
      out += "\\u007F";
    } else {
      out += c;
    }
  }
  return out;
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

bool is_bare_key(const std::string& key) {
  return !key.empty() && key.find_first_not_of(
                             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                             "0123456789_-") == std::string::npos;
}

}  // namespace

TomlDocument parse_toml(std::string_view text, std::string_view name) {
  TomlDocument document;
  try {
    const toml::table table = toml::parse(text, std::string(name));
    document.root = Converter(&document.lines).object(table, "");
  } catch (const toml::parse_error& error) {
    document.problems.push_back({fmt::format("{}:{}", name, error.source().begin.line),
                                 fmt::format("not valid TOML: {}", error.description()), ""});
  } catch (const std::logic_error& error) {
    document.problems.push_back(
        {std::string(name), fmt::format("not valid TOML: {}", error.what()), ""});
  }
  return document;
}

std::optional<Json> parse_toml_value(std::string_view text) {
  try {
    const toml::table table = toml::parse("v = " + std::string(text));
    if (table.size() != 1) return std::nullopt;
    return Converter(nullptr).convert(*table.get("v"), "");
  } catch (const toml::parse_error&) {
    return std::nullopt;
  } catch (const std::logic_error&) {
    return std::nullopt;
  }
}

std::string to_toml_value(const Json& value) {
  if (value.is_string()) return quoted(value.get<std::string>());
  if (value.is_number_float()) return float_text(value.get<double>());
  if (value.is_array()) {
    std::string out = "[";
    for (const Json& item : value) out += (out.size() > 1 ? ", " : "") + to_toml_value(item);
    return out + "]";
  }
  if (value.is_object()) {
    std::string out;
    for (const auto& [key, child] : value.items()) {
      if (child.is_null()) continue;
      out += fmt::format("{}{} = {}", out.empty() ? "" : ", ", is_bare_key(key) ? key : quoted(key),
                         to_toml_value(child));
    }
    return out.empty() ? "{}" : "{ " + out + " }";
  }
  return value.dump();
}

std::string_view type_in_words(const Json& value) {
  if (value.is_number_integer()) return "an integer";
  if (value.is_number_float()) return "a float";
  if (value.is_boolean()) return "a boolean";
  if (value.is_string()) return "a string";
  if (value.is_array()) return "a list";
  if (value.is_object()) return "a table";
  return "null";
}

}  // namespace quatrain
