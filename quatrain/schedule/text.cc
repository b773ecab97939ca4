// SPDX-License-Identifier: Apache-2.0
// Actions and schedules as text. Grammar:
//   action = stage kind [microbatch] ["." unit] ["@" replica] | "(" action ";" action
//   ")OVERLAP_F_B"
// torch.distributed.pipelining reads and writes the same, without unit and replica.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <utility>

#include "quatrain/base/error.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

constexpr std::string_view kOverlap = "OVERLAP_F_B";
constexpr std::string_view kGrammar =
    "an action is <stage><kind>[<microbatch>][.<unit>][@<replica>] with kind F I W B SEND_F RECV_F "
    "SEND_B RECV_B UNSHARD RESHARD REDUCE_GRAD REDUCE_TIED NORM_PART OPTIMIZER_STEP, or "
    "(<action>;<action>)OVERLAP_F_B";

std::string_view name(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "F";
    case ActionKind::kBackwardInput:
      return "I";
    case ActionKind::kBackwardWeight:
      return "W";
    case ActionKind::kBackward:
      return "B";
    case ActionKind::kSendForward:
      return "SEND_F";
    case ActionKind::kRecvForward:
      return "RECV_F";
    case ActionKind::kSendBackward:
      return "SEND_B";
    case ActionKind::kRecvBackward:
      return "RECV_B";
    case ActionKind::kUnshard:
      return "UNSHARD";
    case ActionKind::kReshard:
      return "RESHARD";
    case ActionKind::kReduceGrad:
      return "REDUCE_GRAD";
    case ActionKind::kReduceTied:
      return "REDUCE_TIED";
    case ActionKind::kNormPart:
      return "NORM_PART";
    case ActionKind::kOptimizerStep:
      return "OPTIMIZER_STEP";
  }
  return "?";
}

constexpr std::array kKinds = {
    ActionKind::kForward,      ActionKind::kBackwardInput, ActionKind::kBackwardWeight,
    ActionKind::kBackward,     ActionKind::kSendForward,   ActionKind::kRecvForward,
    ActionKind::kSendBackward, ActionKind::kRecvBackward,  ActionKind::kUnshard,
    ActionKind::kReshard,      ActionKind::kReduceGrad,    ActionKind::kReduceTied,
    ActionKind::kNormPart,     ActionKind::kOptimizerStep};

bool needs_microbatch(ActionKind kind) {
  return kind < ActionKind::kUnshard;  // computation and messages
}

std::string one(const Action& action) {
  std::string text = fmt::format("{}{}", action.stage, name(action.kind));
  if (action.microbatch) text += fmt::format("{}", *action.microbatch);
  if (action.unit) text += fmt::format(".{}", *action.unit);
  if (action.replica != 0) text += fmt::format("@{}", action.replica);
  return text;
}

// Reads one action from the front of `rest`; false where the text leaves the grammar.
class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  std::optional<Action> all() {
    Action action;
    const bool good = rest_.starts_with('(') ? pair(action) : single(action);
    if (!good || !rest_.empty()) return std::nullopt;
    return action;
  }

 private:
  bool pair(Action& first) {
    Action second;
    const bool good = literal("(") && single(first) && literal(";") && single(second) &&
                      literal(")") && literal(kOverlap);
    if (!good) return false;
    first.overlap = std::make_shared<const Action>(std::move(second));
    return true;
  }

  bool single(Action& action) {
    if (!number(action.stage) || !kind(action.kind)) return false;
    int value = 0;
    if (number(value)) action.microbatch = value;
    if (needs_microbatch(action.kind) && !action.microbatch) return false;
    if (literal(".")) {
      if (!number(value)) return false;
      action.unit = value;
    }
    return !literal("@") || number(action.replica);
  }

  bool kind(ActionKind& result) {
    const std::size_t end = rest_.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
    const std::string_view word = rest_.substr(0, end);
    for (ActionKind candidate : kKinds) {
      if (name(candidate) != word) continue;
      result = candidate;
      rest_.remove_prefix(word.size());
      return true;
    }
    return false;
  }

  bool number(int& value) {
    if (rest_.empty() || rest_[0] < '0' || rest_[0] > '9') return false;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc()) return false;
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return true;
  }

  bool literal(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }

  std::string_view rest_;
};

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// Splits off the front of `text` up to `separator`.
std::string_view next_field(std::string_view& text, char separator) {
  const std::size_t at = text.find(separator);
  const std::string_view field = text.substr(0, at);
  text.remove_prefix(at == std::string_view::npos ? text.size() : at + 1);
  return field;
}

std::vector<Action> parse_row(std::string_view line, std::size_t row) {
  std::vector<Action> actions;
  for (int column = 1; !line.empty(); ++column) {
    const std::string_view cell = trim(next_field(line, ','));
    if (cell.empty()) continue;  // an idle slot in exported grids
    const std::optional<Action> action = Parser(cell).all();
    if (!action) {
      throw ConfigError(fmt::format("row {}, column {}: \"{}\" is not an action; {}", row, column,
                                    cell, kGrammar));
    }
    actions.push_back(*action);
  }
  return actions;
}

// rank_of_stage and the counts, from what the rows hold.
void read_off_rows(Schedule& schedule) {
  std::map<std::pair<int, int>, int> rank_of;  // (replica, stage)
  int last_stage = -1, last_replica = 0, last_microbatch = -1;
  for (std::size_t rank = 0; rank < schedule.per_rank.size(); ++rank) {
    for (const Action& slot : schedule.per_rank[rank]) {
      for (const Action* action = &slot; action != nullptr; action = action->overlap.get()) {
        rank_of.try_emplace({action->replica, action->stage}, static_cast<int>(rank));
        last_stage = std::max(last_stage, action->stage);
        last_replica = std::max(last_replica, action->replica);
        last_microbatch = std::max(last_microbatch, action->microbatch.value_or(-1));
      }
    }
  }
  if (rank_of.empty()) throw ConfigError("the schedule has no actions");
  auto expected = rank_of.begin();
  for (int replica = 0; replica <= last_replica; ++replica) {
    std::vector<int> ranks;
    for (int stage = 0; stage <= last_stage; ++stage, ++expected) {
      if (expected == rank_of.end() || expected->first != std::pair(replica, stage)) {
        throw ConfigError(
            fmt::format("stage {} of replica {} is in no row of the schedule, whose "
                        "last stage is {}",
                        stage, replica, last_stage));
      }
      ranks.push_back(expected->second);
    }
    schedule.rank_of_stage.push_back(std::move(ranks));
  }
  schedule.num_stages = last_stage + 1;
  schedule.num_microbatches = last_microbatch + 1;
}

}  // namespace

bool operator==(const Action& a, const Action& b) {
  const bool same = a.stage == b.stage && a.kind == b.kind && a.microbatch == b.microbatch &&
                    a.unit == b.unit && a.replica == b.replica && !a.overlap == !b.overlap;
  return same && (!a.overlap || *a.overlap == *b.overlap);
}

std::string to_string(const Action& action) {
  if (!action.overlap) return one(action);
  return fmt::format("({};{}){}", one(action), one(*action.overlap), kOverlap);
}

Action parse_action(std::string_view text) {
  const std::optional<Action> action = Parser(text).all();
  if (!action) throw ConfigError(fmt::format("\"{}\" is not an action; {}", text, kGrammar));
  return *action;
}

std::string to_csv(const Schedule& schedule) {
  std::string text;
  for (const std::vector<Action>& row : schedule.per_rank) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) text += ',';
      text += to_string(row[i]);
    }
    text += '\n';
  }
  return text;
}

Schedule schedule_from_csv(std::string_view text) {
  Schedule schedule;
  for (std::size_t row = 1; !text.empty(); ++row) {
    schedule.per_rank.push_back(parse_row(next_field(text, '\n'), row));
  }
  read_off_rows(schedule);
  return schedule;
}

}  // namespace quatrain
