// SPDX-License-Identifier: Apache-2.0
// Proves a schedule: every micro-batch passes every stage once each way, on the rank that holds the
// stage, in an order that the data allows, and no rank waits for ever. Here, that every action is
// there once and where its stage is; the order and the messages have files of their own.
#include "quatrain/schedule/check.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "quatrain/schedule/check_rules.h"

namespace quatrain {
namespace {

class Presence {
 public:
  Presence(const Schedule& schedule, const ActionIndex& index, Findings& findings)
      : schedule_(schedule), index_(index), findings_(findings) {}

  void check() {
    for_each_action(schedule_, [&](const Action& action, Place place) { look_at(action, place); });
    for (int m = 0; m < schedule_.num_microbatches; ++m) check_microbatch(m, replica_of(m));
  }

 private:
  int replicas() const { return static_cast<int>(schedule_.rank_of_stage.size()); }

  void look_at(const Action& action, Place place) {
    if (action.stage < 0 || action.stage >= schedule_.num_stages || action.replica < 0 ||
        action.replica >= replicas()) {
      findings_.at(Rule::kOutOfRange, place,
                   fmt::format("{} is of no stage of the schedule", to_string(action)),
                   fmt::format("stages are 0 to {}", schedule_.num_stages - 1));
      return;
    }
    const bool by_microbatch = is_computation(action.kind) || is_message(action.kind);
    if (by_microbatch && !index_.holds(action)) {
      findings_.at(Rule::kOutOfRange, place,
                   fmt::format("{} is of no micro-batch of the schedule", to_string(action)),
                   fmt::format("micro-batches are 0 to {}", schedule_.num_microbatches - 1));
      return;
    }
    const int home = index_.rank_of(action.replica, action.stage);
    if (home != place.rank) {
      findings_.at(Rule::kWrongRank, place,
                   fmt::format("{} runs on rank {} but its stage is on rank {}", to_string(action),
                               place.rank, home));
    }
    find_repeated(action, place);
  }

  void find_repeated(const Action& action, Place place) {
    const bool once = is_computation(action.kind) || is_message(action.kind) ||
                      action.kind == ActionKind::kOptimizerStep ||
                      action.kind == ActionKind::kReduceTied;
    if (!once) return;
    const auto [first, fresh] = seen_.try_emplace(
        {action.replica, action.stage, action.kind, action.microbatch.value_or(0)}, place);
    if (fresh) return;
    findings_.at(Rule::kRepeated, place, fmt::format("{} is repeated", to_string(action)),
                 "first at " + Findings::text(first->second), {first->second});
  }

  // The replica that runs a micro-batch: the one with its first action.
  int replica_of(int microbatch) {
    int result = -1;
    for (int replica = 0; replica < replicas(); ++replica) {
      for (int stage = 0; stage < schedule_.num_stages; ++stage) {
        const Place place = index_.find({replica, stage, ActionKind::kForward, microbatch});
        if (!place.exists()) continue;
        if (result < 0) result = replica;
        if (result == replica) continue;
        findings_.add(
            Rule::kTwoReplicas, "schedule",
            fmt::format("micro-batch {} runs in replicas {} and {}", microbatch, result, replica),
            {}, {place});
        return result;
      }
    }
    return std::max(result, 0);
  }

  void check_microbatch(int m, int replica) {
    for (int stage = 0; stage < schedule_.num_stages; ++stage) {
      const Key forward{replica, stage, ActionKind::kForward, m};
      const Key fused{replica, stage, ActionKind::kBackward, m};
      const Key input{replica, stage, ActionKind::kBackwardInput, m};
      const Key weight{replica, stage, ActionKind::kBackwardWeight, m};
      const bool has_fused = index_.find(fused).exists();
      const bool halves = index_.find(input).exists() || index_.find(weight).exists();
      if (!index_.find(forward).exists()) missing(forward);
      if (has_fused && halves) {
        findings_.at(Rule::kTwoBackwards, index_.find(fused),
                     fmt::format("{} and its halves both run", to_text(fused)),
                     "either B, or I and W");
      } else if (!has_fused && !halves) {
        missing(fused);
      } else if (halves && !index_.find(input).exists()) {
        missing(input);
      } else if (halves && !index_.find(weight).exists()) {
        missing(weight);
      }
    }
  }
  void missing(const Key& key) {
    findings_.add(Rule::kMissing, fmt::format("rank {}", index_.rank_of(key.replica, key.stage)),
                  fmt::format("{} is missing", to_text(key)));
  }

  const Schedule& schedule_;
  const ActionIndex& index_;
  Findings& findings_;
  std::map<std::tuple<int, int, ActionKind, int>, Place> seen_;
};

void check_counts(const Schedule& schedule, Findings& findings) {
  const std::size_t replicas = schedule.rank_of_stage.size(), ranks = schedule.per_rank.size();
  const int microbatches = schedule.num_microbatches;
  if (schedule.num_stages < 1 || microbatches < 1 || replicas < 1 || ranks < 1) {
    findings.add(Rule::kShape, "schedule",
                 fmt::format("{} stages, {} micro-batches, {} replicas, {} ranks",
                             schedule.num_stages, microbatches, replicas, ranks),
                 "each is 1 or more");
    return;
  }
  std::size_t actions = 0;
  for (const auto& row : schedule.per_rank) actions += 2 * row.size();
  if (static_cast<std::size_t>(microbatches) > actions) {
    findings.add(
        Rule::kShape, "schedule",
        fmt::format("{} micro-batches but only {} actions at most", microbatches, actions));
  }
}

void check_placement(const Schedule& schedule, Findings& findings) {
  const auto stages = static_cast<std::size_t>(schedule.num_stages);
  const auto ranks = static_cast<int>(schedule.per_rank.size());
  std::vector<bool> used(schedule.per_rank.size(), false);
  for (std::size_t replica = 0; replica < schedule.rank_of_stage.size(); ++replica) {
    const std::vector<int>& row = schedule.rank_of_stage[replica];
    if (row.size() != stages) {
      findings.add(Rule::kShape, "schedule",
                   fmt::format("replica {} places {} of {} stages", replica, row.size(), stages));
      return;
    }
    for (std::size_t stage = 0; stage < stages; ++stage) {
      if (row[stage] >= 0 && row[stage] < ranks) {
        used[static_cast<std::size_t>(row[stage])] = true;
        continue;
      }
      findings.add(Rule::kShape, "schedule",
                   fmt::format("stage {} is placed on rank {} of {}", stage, row[stage], ranks));
    }
  }
  for (std::size_t rank = 0; findings.empty() && rank < used.size(); ++rank) {
    if (used[rank]) continue;
    findings.add(Rule::kShape, fmt::format("rank {}", rank), "no stage is placed on it",
                 "every row has one or more");
  }
}

}  // namespace

std::string_view code(Rule rule) {
  switch (rule) {
    case Rule::kShape:
      return "shape";
    case Rule::kOutOfRange:
      return "out-of-range";
    case Rule::kWrongRank:
      return "wrong-rank";
    case Rule::kRepeated:
      return "repeated";
    case Rule::kMissing:
      return "missing";
    case Rule::kTwoBackwards:
      return "two-backwards";
    case Rule::kTwoReplicas:
      return "two-replicas";
    case Rule::kOrder:
      return "order";
    case Rule::kMissingSend:
      return "missing-send";
    case Rule::kMissingReceive:
      return "missing-receive";
    case Rule::kLocalMessage:
      return "local-message";
    case Rule::kLaneOrder:
      return "lane-order";
    case Rule::kDeadlock:
      return "deadlock";
    case Rule::kReduceTooEarly:
      return "reduce-too-early";
    case Rule::kReducePartner:
      return "reduce-partner";
    case Rule::kNormTooEarly:
      return "norm-too-early";
    case Rule::kAfterStep:
      return "after-step";
    case Rule::kMissingStep:
      return "missing-step";
    case Rule::kUnbalancedUnits:
      return "unbalanced-units";
  }
  return "?";
}

std::vector<Violation> violations(const Schedule& schedule) {
  Findings findings;
  check_counts(schedule, findings);
  if (findings.empty()) check_placement(schedule, findings);
  if (!findings.empty()) return findings.take();
  const ActionIndex index(schedule);
  Presence(schedule, index, findings).check();
  check_order(schedule, index, findings);
  check_messages(schedule, index, findings);
  check_step(schedule, index, findings);
  check_progress(schedule, index, findings);
  return findings.take();
}

Problems check(const Schedule& schedule) {
  Problems problems;
  for (Violation& violation : violations(schedule)) {
    problems.push_back(std::move(violation.problem));
  }
  return problems;
}

}  // namespace quatrain
