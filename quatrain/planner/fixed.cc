// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/fixed.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/base/text.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

constexpr std::pair<const char*, std::optional<int> Fixed::*> kDegrees[] = {
    {"dp", &Fixed::dp}, {"dp_replicate", &Fixed::dp_replicate},
    {"tp", &Fixed::tp}, {"cp", &Fixed::cp},
    {"pp", &Fixed::pp}, {"chunks", &Fixed::chunks},
    {"ep", &Fixed::ep}, {"etp", &Fixed::etp}};

std::int64_t number(std::string_view key, std::string_view text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc{} && end == text.data() + text.size() && value >= least && value <= most) {
    return value;
  }
  throw ConfigError(
      fmt::format("{} = {} is no whole number from {} to {}", key, text, least, most));
}

bool truth(std::string_view key, std::string_view text) {
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  throw ConfigError(fmt::format("{} = {} is neither true nor false", key, text));
}

Recompute recompute_of(std::string_view text) {
  if (const auto known = recompute_from_name(text)) return *known;
  throw ConfigError(fmt::format("recompute = {} is none of none, selective, full", text));
}

std::string schedule_of(std::string_view text) {
  const std::vector<std::string_view> names = schedule_names();
  if (std::find(names.begin(), names.end(), text) != names.end()) return std::string(text);
  const std::vector<std::string> all(names.begin(), names.end());
  const std::vector<std::string> near = nearest(text, all, 1);
  throw ConfigError(fmt::format(
      "there is no schedule \"{}\"; {}", text,
      near.empty() ? "schedules: " + join(all, " ") : "did you mean " + near.front() + "?"));
}

void set(Fixed& fixed, std::string_view key, std::string_view value) {
  constexpr int kMost = 1'000'000;
  for (const auto& [name, member] : kDegrees) {
    if (key != name) continue;
    fixed.*member = static_cast<int>(number(key, value, 1, kMost));
    return;
  }
  if (key == "zero") {
    fixed.zero = static_cast<int>(number(key, value, 0, 3));
  } else if (key == "micro_batch") {
    fixed.micro_batch = number(key, value, 1, kMost);
  } else if (key == "sequence_parallel") {
    fixed.sequence_parallel = truth(key, value);
  } else if (key == "gather_again") {
    fixed.gather_again = truth(key, value);
  } else if (key == "schedule") {
    fixed.schedule = schedule_of(value);
  } else if (key == "recompute") {
    fixed.recompute = recompute_of(value);
  } else {
    throw ConfigError(
        fmt::format("{} cannot be fixed; keys: dp dp_replicate tp cp pp chunks ep etp zero "
                    "micro_batch sequence_parallel gather_again schedule recompute",
                    key));
  }
}

}  // namespace

Fixed parse_fixed(std::string_view text) {
  Fixed fixed;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      throw ConfigError(fmt::format("\"{}\" is not key=value, as in tp=8,pp=1", item));
    }
    set(fixed, item.substr(0, equals), item.substr(equals + 1));
  }
  return fixed;
}

Fixed merged(Fixed base, const Fixed& more) {
  const auto take = [&](auto member) {
    if (more.*member) base.*member = more.*member;
  };
  for (const auto& [name, member] : kDegrees) take(member);
  take(&Fixed::zero);
  take(&Fixed::sequence_parallel);
  take(&Fixed::gather_again);
  take(&Fixed::micro_batch);
  take(&Fixed::recompute);
  take(&Fixed::schedule);
  return base;
}

}  // namespace quatrain
