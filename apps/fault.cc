// SPDX-License-Identifier: Apache-2.0
// See fault.h.
#include "apps/fault.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include "quatrain/base/error.h"

namespace quatrain::apps {
namespace {

constexpr std::chrono::minutes kAsleep{1};  // longer than a timeout that anybody waits for
constexpr std::pair<std::string_view, Fault> kActions[] = {{"sleep", Fault::kDelay},
                                                           {"throw", Fault::kThrow},
                                                           {"die", Fault::kDie},
                                                           {"shape", Fault::kWrongShape},
                                                           {"other", Fault::kOtherOperation}};

[[noreturn]] void refuse(std::string_view word) {
  throw ConfigError(fmt::format(
      "debug.fault: \"{}\" is not understood; give rank=R,operation=O,group=G,sequence=N,action=A, "
      "where O is an operation as in messages (all_gather, barrier, ...) and A one of sleep, "
      "throw, die, shape, other",
      word));
}

template <class Number>
Number number_of(std::string_view word, std::string_view value) {
  Number number = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end || number < 0) refuse(word);
  return number;
}

Operation operation_of(std::string_view word, std::string_view value) {
  for (int o = 0; o < kNumOperations; ++o) {
    const auto operation = static_cast<Operation>(o);
    if (operation != Operation::kGroup && name(operation) == value) return operation;
  }
  refuse(word);
}

Fault action_of(std::string_view word, std::string_view value) {
  for (const auto& [name, fault] : kActions) {
    if (name == value) return fault;
  }
  refuse(word);
}

}  // namespace

std::vector<FaultRule> parse_fault(std::string_view text, int ranks) {
  if (text.empty()) return {};
  FaultRule rule{.delay = kAsleep};
  bool acts = false;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    const std::size_t equals = std::min(word.find('='), word.size());
    const std::string_view key = word.substr(0, equals);
    const std::string_view value = word.substr(std::min(equals + 1, word.size()));
    if (key == "rank") {
      rule.rank = number_of<int>(word, value);
    } else if (key == "operation") {
      rule.operation = operation_of(word, value);
    } else if (key == "group") {
      rule.group = value;
    } else if (key == "sequence") {
      rule.sequence = number_of<std::int64_t>(word, value);
    } else if (key == "action") {
      rule.fault = action_of(word, value);
      acts = true;
    } else {
      refuse(word);
    }
  }
  if (!acts) refuse(text);
  if (rule.rank >= ranks) {
    throw ConfigError(
        fmt::format("debug.fault: rank = {}, but there are {} ranks, from 0", rule.rank, ranks));
  }
  return {rule};
}

}  // namespace quatrain::apps
