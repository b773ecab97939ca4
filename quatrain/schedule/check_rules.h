// SPDX-License-Identifier: Apache-2.0
// The parts of check(), each given a schedule whose shape is sound. They add what they find.
#pragma once
#include <fmt/format.h>

#include <string>
#include <utility>

#include "quatrain/schedule/check.h"

namespace quatrain {

class Findings {
 public:
  void add(Rule rule, std::string where, std::string what, std::string hint = {},
           std::vector<Place> actions = {}) {
    found_.push_back(
        {rule, {std::move(where), std::move(what), std::move(hint)}, std::move(actions)});
  }
  void at(Rule rule, Place place, std::string what, std::string hint = {},
          std::vector<Place> others = {}) {
    others.insert(others.begin(), place);
    add(rule, text(place), std::move(what), std::move(hint), std::move(others));
  }
  static std::string text(Place place) {
    return fmt::format("rank {}, action {}", place.rank, place.slot);
  }
  bool empty() const { return found_.empty(); }
  std::vector<Violation> take() { return std::move(found_); }

 private:
  std::vector<Violation> found_;
};

inline std::string to_text(const Key& key) {
  Action action;
  action.stage = key.stage;
  action.kind = key.kind;
  action.microbatch = key.microbatch;
  action.replica = key.replica;
  return to_string(action);
}

void check_order(const Schedule& schedule, const ActionIndex& index, Findings& findings);
void check_messages(const Schedule& schedule, const ActionIndex& index, Findings& findings);
void check_step(const Schedule& schedule, const ActionIndex& index, Findings& findings);
void check_progress(const Schedule& schedule, const ActionIndex& index, Findings& findings);

}  // namespace quatrain
