// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/pipeline.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "quatrain/kernels/check.h"
#include "quatrain/schedule/action_index.h"

namespace quatrain {

Pipeline::Pipeline(Communicator& pipe, std::vector<int> rank_of_stage)
    : pipe_(pipe), rank_of_stage_(std::move(rank_of_stage)) {
  CHECK(!rank_of_stage_.empty(), "a pipeline without stages");
  for (const int rank : rank_of_stage_) {
    CHECK(rank >= 0 && rank < pipe.size(), "a stage on rank {} of {}", rank, pipe.size());
  }
  // In the order of stages, on every rank: groups are made in one order.
  for (std::size_t s = 0; s + 1 < rank_of_stage_.size(); ++s) {
    add_lanes(rank_of_stage_[s], rank_of_stage_[s + 1]);
  }
  const std::array ends{rank_of_stage_.front(), rank_of_stage_.back()};
  if (ends[0] != ends[1] && (rank() == ends[0] || rank() == ends[1])) {
    tied_ = pipe_.group(ends, "pp:tied");
  }
}

bool Pipeline::holds(int stage) const {
  return stage >= 0 && stage < num_stages() &&
         rank_of_stage_[static_cast<std::size_t>(stage)] == rank();
}

void Pipeline::add_lanes(int from, int to) {
  if (from == to || (rank() != from && rank() != to)) return;
  for (const bool forward : {true, false}) {
    const std::array ends = forward ? std::array{from, to} : std::array{to, from};
    auto& lane = lanes_[{ends[0], ends[1], forward}];
    if (lane != nullptr) continue;
    lane = pipe_.group(ends, fmt::format("pp:{}>{}:{}", ends[0], ends[1], forward ? 'F' : 'B'));
  }
}

Pipeline::Lanes::const_iterator Pipeline::lane_of(const Action& message) const {
  const bool sends = is_send(message.kind);
  const bool forward = is_forward_message(message.kind);
  const int neighbour = message.stage + (sends == forward ? 1 : -1);
  if (neighbour < 0 || neighbour >= num_stages()) return lanes_.end();
  const int other = rank_of_stage_[static_cast<std::size_t>(neighbour)];
  return sends ? lanes_.find({rank(), other, forward}) : lanes_.find({other, rank(), forward});
}

}  // namespace quatrain
