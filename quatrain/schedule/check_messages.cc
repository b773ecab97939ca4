// SPDX-License-Identifier: Apache-2.0
// What a row needs stands ahead in it, every hop has both its ends, and between two ranks receives
// come in the order of sends.
#include <algorithm>
#include <map>
#include <tuple>

#include "quatrain/schedule/check_rules.h"

namespace quatrain {
namespace {

// One way between two ranks; forwards and backwards do not share one.
using Way = std::tuple<int, int, bool>;
struct InLane {
  Place place;
  Key key;
};

class Messages {
 public:
  Messages(const Schedule& schedule, const ActionIndex& index, Findings& findings)
      : schedule_(schedule), index_(index), findings_(findings) {}

  void check() {
    for_each_action(schedule_, [&](const Action& action, Place place) {
      if (!index_.holds(action) || !is_message(action.kind)) return;
      written_ = true;
      check_message(ActionIndex::key_of(action), place);
    });
    for_each_action(schedule_, [&](const Action& action, Place place) {
      if (written_ && index_.holds(action)) check_hop(ActionIndex::key_of(action), place);
    });
    for (const auto& [lane, sends] : sends_) check_lane(sends, receives_[lane]);
  }

 private:
  void check_message(const Key& key, Place place) {
    const std::optional<Key> other = index_.other_end(key);
    if (!other ||
        index_.rank_of(other->replica, other->stage) == index_.rank_of(key.replica, key.stage)) {
      findings_.at(Rule::kLocalMessage, place,
                   other ? fmt::format("{} has no {}: both stages are on one rank", to_text(key),
                                       to_text(*other))
                         : fmt::format("{} has no other end in the pipeline", to_text(key)));
      return;
    }
    const Place end = index_.find(*other);
    const bool sends = is_send(key.kind);
    if (!end.exists()) {
      findings_.at(sends ? Rule::kMissingReceive : Rule::kMissingSend, place,
                   fmt::format("{} has no {}", to_text(key), to_text(*other)));
      return;
    }
    const bool forward = is_forward_message(key.kind);
    if (sends) {
      sends_[{place.rank, end.rank, forward}].push_back({place, key});
    } else {
      receives_[{end.rank, place.rank, forward}].push_back({place, *other});
    }
  }

  // From a computation to its consumer: neither end is written.
  void check_hop(const Key& producer, Place place) {
    const std::optional<Key> consumer = index_.consumer(producer);
    if (!consumer || index_.rank_of(consumer->replica, consumer->stage) == place.rank) return;
    const bool forward = producer.kind == ActionKind::kForward;
    const Key send{producer.replica, producer.stage,
                   forward ? ActionKind::kSendForward : ActionKind::kSendBackward,
                   producer.microbatch};
    const Key receive = *index_.other_end(send);
    if (index_.find(send).exists() || index_.find(receive).exists()) return;
    findings_.at(Rule::kMissingSend, place,
                 fmt::format("{} is not sent: {} is missing", to_text(producer), to_text(send)));
    const Place to = index_.find(*consumer);
    if (!to.exists()) return;
    findings_.at(Rule::kMissingReceive, to,
                 fmt::format("{} has no {}", to_text(*consumer), to_text(receive)));
  }

  // The first receive that stands where another send's should.
  void check_lane(const std::vector<InLane>& sends, const std::vector<InLane>& receives) {
    const std::size_t count = std::min(sends.size(), receives.size());
    for (std::size_t i = 0; i < count; ++i) {
      const Key& sent = sends[i].key;
      const Key& received = receives[i].key;
      const bool same = sent.replica == received.replica && sent.stage == received.stage &&
                        sent.microbatch == received.microbatch;
      if (same) continue;
      findings_.at(Rule::kLaneOrder, receives[i].place,
                   fmt::format("the receive of {} stands where that of {} should",
                               to_text(received), to_text(sent)),
                   fmt::format("rank {} sends {} first", sends[i].place.rank, to_text(sent)),
                   {sends[i].place});
      return;
    }
  }

  const Schedule& schedule_;
  const ActionIndex& index_;
  Findings& findings_;
  bool written_ = false;
  std::map<Way, std::vector<InLane>> sends_;
  std::map<Way, std::vector<InLane>> receives_;  // with the keys of their sends
};

}  // namespace

void check_order(const Schedule& schedule, const ActionIndex& index, Findings& findings) {
  for_each_action(schedule, [&](const Action& action, Place place) {
    if (!index.holds(action)) return;
    const Key key = ActionIndex::key_of(action);
    for (const std::optional<Key>& before : index.dependencies(key)) {
      if (!before) continue;
      const Place other = index.find(*before);
      if (other.exists() && other.rank == place.rank && other.slot >= place.slot) {
        findings.at(
            Rule::kOrder, place,
            fmt::format("{} runs before {}, which it needs", to_text(key), to_text(*before)),
            fmt::format("that is action {}", other.slot), {other});
      } else if (!other.exists() && is_send(action.kind)) {
        findings.at(Rule::kOrder, place,
                    fmt::format("{} has no {}", to_text(key), to_text(*before)));
      }
    }
  });
}

void check_messages(const Schedule& schedule, const ActionIndex& index, Findings& findings) {
  Messages(schedule, index, findings).check();
}

}  // namespace quatrain
