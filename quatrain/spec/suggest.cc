// SPDX-License-Identifier: Apache-2.0
// Suggestions from the tables of keys: the same name elsewhere, other trainers' names, slips.
#include "quatrain/spec/suggest.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "quatrain/base/text.h"
#include "quatrain/spec/model_keys.h"
#include "quatrain/spec/run_keys.h"

namespace quatrain {
namespace {

struct Candidate {
  std::string typed;    // what may have been meant to be typed
  std::string section;  // where our key lives
  std::string key;
};

void add_words(std::vector<Candidate>& list, std::string_view words, std::string_view section,
               std::string_view key) {
  std::size_t begin = 0;
  while (begin < words.size()) {
    const std::size_t end = std::min(words.find(' ', begin), words.size());
    list.push_back(
        {std::string(words.substr(begin, end - begin)), std::string(section), std::string(key)});
    begin = end + 1;
  }
}

std::vector<Candidate> candidates() {
  std::vector<Candidate> list;
  for (const Key& key : run_keys()) add_words(list, key.name, key.section, key.name);
  for (const ModelKey& key : model_keys()) add_words(list, key.name, "model", key.name);
  for (const ModelKey& key : model_keys()) add_words(list, key.aliases, "model", key.name);
  for (const Key& key : run_keys()) add_words(list, key.also, key.section, key.name);
  return list;
}

std::string did_you_mean(const Candidate& found, std::string_view section) {
  if (found.section == section) return fmt::format("did you mean {}?", found.key);
  return fmt::format("did you mean {} in [{}]?", found.key, found.section);
}

std::string keys_of(std::string_view section) {
  std::vector<std::string> names;
  for (const Key& key : run_keys()) {
    if (key.section == section) names.emplace_back(key.name);
  }
  return fmt::format("keys of [{}]: {}", section, join(names, " "));
}

// The nearest slip among candidates in `section` (empty: in any).
std::string slip(const std::vector<Candidate>& list, std::string_view key, std::string_view section,
                 std::string_view own) {
  std::vector<std::string> typed;
  for (const Candidate& item : list) {
    if (section.empty() || item.section == section) typed.push_back(item.typed);
  }
  const auto near = nearest(key, typed, 1);
  if (near.empty()) return "";
  for (const Candidate& item : list) {
    if (item.typed == near[0] && (section.empty() || item.section == section)) {
      return did_you_mean(item, own);
    }
  }
  return "";
}

}  // namespace

std::string suggest_key(std::string_view section, std::string_view key) {
  const auto list = candidates();
  for (const Candidate& item : list) {
    if (item.typed != key || item.section == section) continue;
    return item.key == key ? fmt::format("this key belongs in [{}]", item.section)
                           : did_you_mean(item, section);
  }
  for (const Candidate& item : list) {
    if (item.typed == key) return did_you_mean(item, section);
  }
  std::string found = slip(list, key, section, section);
  if (found.empty()) found = slip(list, key, "", section);
  return found.empty() ? keys_of(section) : found;
}

std::string suggest_section_of(std::string_view key) {
  const std::string found = suggest_key("", key);
  return found.starts_with("keys of") ? suggest_section("") : found;
}

std::string suggest_section(std::string_view section) {
  std::vector<std::string> names;
  for (std::string_view name : run_sections()) names.emplace_back(name);
  const auto near = nearest(section, names, 1);
  return near.empty() ? "sections: " + join(names, " ")
                      : fmt::format("did you mean [{}]?", near[0]);
}

}  // namespace quatrain
