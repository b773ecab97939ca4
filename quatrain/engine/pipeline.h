// SPDX-License-Identifier: Apache-2.0
// A rank's place among the stages, and the lanes on which stages of different ranks talk: one for
// each sender, receiver and direction (activations, gradients), so that no message waits behind
// one of another kind. A lane keeps the order in which its messages are sent.
#pragma once
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "quatrain/comm/communicator.h"
#include "quatrain/schedule/action.h"

namespace quatrain {

class Pipeline {
 public:
  // `pipe` (borrowed): the ranks that hold the stages between them. Made by all of them together.
  // Groups are named "pp:2>3:F" and, of the ranks with the first and the last stage, "pp:tied".
  Pipeline(Communicator& pipe, std::vector<int> rank_of_stage);

  int rank() const { return pipe_.rank(); }
  int num_stages() const { return static_cast<int>(rank_of_stage_.size()); }
  const std::vector<int>& rank_of_stage() const { return rank_of_stage_; }
  bool is_last(int stage) const { return stage + 1 == num_stages(); }
  bool holds(int stage) const;

  // SEND or RECV of a stage of this rank, to or from the one that its neighbour is on: false where
  // that is this one, or there is none. send() and recv() need it.
  bool has_lane(const Action& message) const { return lane_of(message) != lanes_.end(); }
  Work send(const Action& send, const at::Tensor& x) { return lane(send).send(x, 1); }
  Work recv(const Action& recv, at::Tensor x) { return lane(recv).recv(std::move(x), 0); }

  // The other ends of tied weights; null where this rank holds none of two copies.
  Communicator* tied() { return tied_.get(); }

 private:
  // By sender, receiver and whether it carries activations.
  using Lanes = std::map<std::tuple<int, int, bool>, std::unique_ptr<Communicator>>;

  Lanes::const_iterator lane_of(const Action& message) const;
  Communicator& lane(const Action& message) const { return *lane_of(message)->second; }
  void add_lanes(int from, int to);

  Communicator& pipe_;
  std::vector<int> rank_of_stage_;
  Lanes lanes_;  // those that this rank is an end of
  std::unique_ptr<Communicator> tied_;
};

}  // namespace quatrain
