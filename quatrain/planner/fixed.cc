// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/fixed.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/base/text.h"
#include "quatrain/schedule/schedule.h"
#include "quatrain/spec/context_split.h"

namespace quatrain {
namespace {

constexpr std::pair<const char*, std::optional<int> Fixed::*> kDegrees[] = {
    {"dp", &Fixed::dp},
    {"dp_replicate", &Fixed::dp_replicate},
    {"tp", &Fixed::tp},
    {"cp", &Fixed::cp},
    {"pp", &Fixed::pp},
    {"chunks", &Fixed::chunks},
    {"ep", &Fixed::ep},
    {"etp", &Fixed::etp},
    {"cp_heads", &Fixed::cp_heads}};

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

std::string_view style_of(std::string_view text) {
  for (const std::string_view style : kCpStyles) {
    if (style == text) return style;
  }
  throw ConfigError(fmt::format("cp_style = {} is none of {}", text, fmt::join(kCpStyles, ", ")));
}

bool zigzag_of(std::string_view text) {
  if (text == "zigzag") return true;
  if (text == "contiguous") return false;
  throw ConfigError(fmt::format("cp_balance = {} is neither zigzag nor contiguous", text));
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
  } else if (key == "cp_style") {
    fixed.cp_style = style_of(value);
  } else if (key == "cp_balance") {
    fixed.cp_zigzag = zigzag_of(value);
  } else if (key == "schedule") {
    fixed.schedule = schedule_of(value);
  } else if (key == "recompute") {
    fixed.recompute = recompute_of(value);
  } else {
    throw ConfigError(
        fmt::format("{} cannot be fixed; keys: dp dp_replicate tp cp cp_style cp_heads cp_balance "
                    "pp chunks ep etp zero micro_batch sequence_parallel gather_again schedule "
                    "recompute",
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

std::vector<ContextStyle> context_styles(const Job& job, const Fixed& fixed, int tp, int cp) {
  if (cp == 1) return {ContextStyle{}};
  std::vector<ContextStyle> styles;
  const bool zigzag = fixed.cp_zigzag.value_or(true);
  const auto fits = [&](const ContextStyle& style) {
    return check_context(job.model, tp, context_split(style.name, cp, style.heads), job.seq)
        .empty();
  };
  for (const std::string_view name : kCpStyles) {
    if (fixed.cp_style && *fixed.cp_style != name) continue;
    if (name != "hybrid") {
      const ContextStyle style{name, 1, zigzag};
      if (!fixed.cp_heads && fits(style)) styles.push_back(style);
      continue;
    }
    const int most =
        fixed.cp_heads.value_or(std::min(cp / 2, static_cast<int>(job.cluster.domain) / tp));
    for (int heads = most; heads >= fixed.cp_heads.value_or(2); --heads) {
      const ContextStyle style{name, heads, zigzag};
      if (cp % heads != 0 || !fits(style)) continue;
      styles.push_back(style);
      break;
    }
  }
  return styles;
}

Fixed merged(Fixed base, const Fixed& more) {
  const auto take = [&](auto member) {
    if (more.*member) base.*member = more.*member;
  };
  for (const auto& [name, member] : kDegrees) take(member);
  take(&Fixed::zero);
  take(&Fixed::sequence_parallel);
  take(&Fixed::gather_again);
  take(&Fixed::cp_style);
  take(&Fixed::cp_zigzag);
  take(&Fixed::micro_batch);
  take(&Fixed::recompute);
  take(&Fixed::schedule);
  return base;
}

}  // namespace quatrain
