// SPDX-License-Identifier: Apache-2.0
// A pipeline without numbers: runs rows as an executor would, with messages that block until both
// ends are there. Shares nothing with check(), so that each can judge the other.
#pragma once
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "quatrain/schedule/schedule.h"

namespace quatrain {

enum class Outcome { kRight, kDeadlock, kWrong };

class BlockingPipeline {
 public:
  explicit BlockingPipeline(const Schedule& schedule)
      : schedule_(schedule), ranks_(schedule.per_rank.size()) {
    for (const auto& row : schedule.per_rank) {
      ties_ = ties_ || std::ranges::any_of(row, [](const Action& action) {
                return action.kind == ActionKind::kReduceTied;
              });
    }
  }

  Outcome run() {
    for (bool moved = true; moved && !wrong_;) {
      moved = false;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        while (!wrong_ && advance(rank)) moved = true;
      }
    }
    if (wrong_) return Outcome::kWrong;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (head(rank) != nullptr) return Outcome::kDeadlock;
    }
    return all_work_is_done() ? Outcome::kRight : Outcome::kWrong;
  }

 private:
  enum class What { kOutput, kInputGrad, kStash, kWeightStash };
  using Value = std::tuple<What, int, int, int>;  // replica, stage, micro-batch
  using Owner = std::pair<int, int>;              // replica, stage
  struct Rank {
    std::size_t next = 0;
    std::set<Value> holds;
  };

  const Action* head(std::size_t rank) const {
    const auto& row = schedule_.per_rank[rank];
    return ranks_[rank].next < row.size() ? &row[ranks_[rank].next] : nullptr;
  }
  std::size_t home(const Action& a) const {
    return static_cast<std::size_t>(schedule_.rank_of_stage[static_cast<std::size_t>(a.replica)]
                                                           [static_cast<std::size_t>(a.stage)]);
  }
  static Value value(What what, const Action& a, int stage) {
    return {what, a.replica, stage, *a.microbatch};
  }
  void require(bool good) { wrong_ = wrong_ || !good; }

  // Does what stands at the head of a row, with its partner where it has one; false: it waits.
  bool advance(std::size_t rank) {
    const Action* action = head(rank);
    if (action == nullptr) return false;
    require(home(*action) == rank);
    switch (action->kind) {
      case ActionKind::kSendForward:
        return send(rank, *action, action->stage + 1, ActionKind::kRecvForward, What::kOutput);
      case ActionKind::kSendBackward:
        return send(rank, *action, action->stage - 1, ActionKind::kRecvBackward, What::kInputGrad);
      case ActionKind::kRecvForward:
      case ActionKind::kRecvBackward:
        return false;  // the sender moves both
      case ActionKind::kReduceTied:
        return reduce_tied(rank, *action);
      case ActionKind::kOptimizerStep:
        step(*action);
        break;
      default:
        compute_all(rank, *action);
    }
    ++ranks_[rank].next;
    return true;
  }

  bool send(std::size_t rank, const Action& a, int to_stage, ActionKind receive, What what) {
    require(ranks_[rank].holds.contains(value(what, a, a.stage)));
    if (to_stage < 0 || to_stage >= schedule_.num_stages) return false;
    Action wanted = a;
    wanted.kind = receive;
    wanted.stage = to_stage;
    const std::size_t to = home(wanted);
    if (to == rank || head(to) == nullptr || !(*head(to) == wanted)) return false;
    require(ranks_[to].holds.insert(value(what, a, a.stage)).second);
    ++ranks_[rank].next;
    ++ranks_[to].next;
    return true;
  }

  bool reduce_tied(std::size_t rank, const Action& a) {
    Action other = a;
    other.stage = schedule_.num_stages - 1 - a.stage;
    const std::size_t to = home(other);
    if (to == rank || head(to) == nullptr || !(*head(to) == other)) return false;
    for (const Action& one : {a, other}) {
      require(gradient_is_whole(one));
      require(tied_.insert({one.replica, one.stage}).second);
    }
    ++ranks_[rank].next;
    ++ranks_[to].next;
    return true;
  }

  // All inputs are there before either half of a pair begins.
  void compute_all(std::size_t rank, const Action& action) {
    for (const Action* a = &action; a != nullptr; a = a->overlap.get()) take(rank, *a);
    for (const Action* a = &action; a != nullptr; a = a->overlap.get()) make(rank, *a);
  }

  void take(std::size_t rank, const Action& a) {
    require(home(a) == rank && !stepped_.contains({a.replica, a.stage}));
    std::set<Value>& holds = ranks_[rank].holds;
    const bool first = a.stage == 0, last = a.stage + 1 == schedule_.num_stages;
    if (a.kind == ActionKind::kForward) {
      require(first || holds.contains(value(What::kOutput, a, a.stage - 1)));
    } else if (a.kind == ActionKind::kBackwardWeight) {
      require(holds.erase(value(What::kWeightStash, a, a.stage)) == 1);
    } else {
      require(last || holds.contains(value(What::kInputGrad, a, a.stage + 1)));
      require(holds.erase(value(What::kStash, a, a.stage)) == 1);
    }
  }

  void make(std::size_t rank, const Action& a) {
    std::set<Value>& holds = ranks_[rank].holds;
    const auto add = [&](What what) { require(holds.insert(value(what, a, a.stage)).second); };
    if (a.kind == ActionKind::kForward) {
      add(What::kOutput);
      add(What::kStash);
    }
    if (a.kind == ActionKind::kBackwardInput || a.kind == ActionKind::kBackward) {
      add(What::kInputGrad);
    }
    if (a.kind == ActionKind::kBackwardInput) add(What::kWeightStash);
    if (a.kind == ActionKind::kBackward || a.kind == ActionKind::kBackwardWeight) {
      require(gradients_[{a.replica, a.stage}].insert(*a.microbatch).second);
    }
  }

  // In a second replica, those of the micro-batches that run there.
  bool gradient_is_whole(const Action& a) {
    std::size_t count = 0;
    for (std::size_t replica = 0; replica < schedule_.rank_of_stage.size(); ++replica) {
      count += gradients_[{static_cast<int>(replica), a.stage}].size();
    }
    const auto all = static_cast<std::size_t>(schedule_.num_microbatches);
    const bool two = schedule_.rank_of_stage.size() > 1;
    return two ? gradients_[{a.replica, a.stage}].size() == all / 2 : count == all;
  }

  void step(const Action& a) {
    const bool tied = ties_ && (a.stage == 0 || a.stage + 1 == schedule_.num_stages);
    require(gradient_is_whole(a) && (!tied || tied_.contains({a.replica, a.stage})));
    require(stepped_.insert({a.replica, a.stage}).second);
  }

  bool all_work_is_done() {
    const auto stages =
        schedule_.rank_of_stage.size() * static_cast<std::size_t>(schedule_.num_stages);
    if (!stepped_.empty() && stepped_.size() != stages) return false;
    Action action;
    for (action.replica = 0; action.replica < static_cast<int>(schedule_.rank_of_stage.size());
         ++action.replica) {
      for (action.stage = 0; action.stage < schedule_.num_stages; ++action.stage) {
        if (!gradient_is_whole(action)) return false;
      }
    }
    return true;
  }

  const Schedule& schedule_;
  std::vector<Rank> ranks_;
  std::map<Owner, std::set<int>> gradients_;
  std::set<Owner> tied_, stepped_;
  bool ties_ = false;  // the first and the last stage
  bool wrong_ = false;
};

inline Outcome run_blocking(const Schedule& schedule) { return BlockingPipeline(schedule).run(); }

}  // namespace quatrain
