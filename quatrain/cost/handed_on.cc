// SPDX-License-Identifier: Apache-2.0
#include "quatrain/cost/handed_on.h"

#include <algorithm>
#include <limits>
#include <map>

#include "quatrain/schedule/action_index.h"

namespace quatrain {
namespace {

class RankWalk {
 public:
  RankWalk(const Schedule& schedule, const ActionIndex& index, int rank)
      : schedule_(schedule), index_(index), rank_(rank) {}

  int run() {
    const auto& row = schedule_.per_rank[static_cast<std::size_t>(rank_)];
    for (std::size_t slot = 0; slot < row.size(); ++slot) {
      if (!index_.holds(row[slot])) continue;
      const Key key = ActionIndex::key_of(row[slot]);
      if (is_send(key.kind)) pass_on(key);
      // A stage may run layer by layer: what it needs is there for the first.
      const bool first = index_.find(key) == Place{rank_, static_cast<int>(slot)};
      if (is_computation(key.kind) && first) compute(key);
    }
    return most_;
  }

 private:
  void compute(const Key& key) {
    const auto needs = index_.dependencies(key);
    for (const std::optional<Key>& needed : needs) {
      if (needed && needed->stage != key.stage && index_.find(*needed).rank == rank_) --within_;
    }
    if (const std::optional<Key> consumer = index_.consumer(key)) hand_on(*consumer);
    most_ = std::max(most_, within_ + out());
    for (const std::optional<Key>& needed : needs) {  // what they show to be gone is let go behind
      if (needed && is_message(needed->kind)) release(*needed);
    }
  }

  // By layer, a stage without layers has no computation that makes what it sends.
  void pass_on(const Key& send) {
    const std::optional<Key> maker = index_.dependencies(send)[0];
    if (!maker || index_.find(*maker).exists()) return;
    if (const std::optional<Key> consumer = index_.consumer(*maker)) hand_on(*consumer);
    most_ = std::max(most_, within_ + out());
  }

  void hand_on(const Key& consumer) {
    const Place use = index_.find(consumer);
    if (use.rank == rank_) {
      ++within_;
    } else {
      const int slot = use.exists() ? use.slot : std::numeric_limits<int>::max();
      ++out_[index_.rank_of(consumer.replica, consumer.stage)][slot];
    }
  }

  // All that the sender of `received` had used before it sent that.
  void release(const Key& received) {
    const std::optional<Key> send = index_.other_end(received);
    const Place sent = send ? index_.find(*send) : Place{};
    if (!sent.exists()) return;
    auto& uses = out_[sent.rank];
    uses.erase(uses.begin(), uses.lower_bound(sent.slot));
  }

  int out() const {
    int sum = 0;
    for (const auto& [to, uses] : out_) {
      for (const auto& [slot, count] : uses) sum += count;
    }
    return sum;
  }

  const Schedule& schedule_;
  const ActionIndex& index_;
  int rank_;
  int within_ = 0;                         // handed to stages of this rank
  std::map<int, std::map<int, int>> out_;  // by receiver, by the slot where it uses them
  int most_ = 0;
};

}  // namespace

std::vector<int> handed_on_bound(const Schedule& schedule) {
  const ActionIndex index(schedule);
  std::vector<int> most;
  for (int rank = 0; rank < static_cast<int>(schedule.per_rank.size()); ++rank) {
    most.push_back(RankWalk(schedule, index, rank).run());
  }
  return most;
}

}  // namespace quatrain
