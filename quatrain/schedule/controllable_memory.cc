// SPDX-License-Identifier: Apache-2.0
// V-Half and V-Min (Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv:2405.15362):
// a building block, repeated every six slots, in a V placement whose chunks live long on one side
// and short on the other, so that every rank holds a half or a third of 1F1B's peak. The repeated
// block is then squeezed: warm-up and cool-down move into earlier free slots where the peak allows.
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <tuple>

#include "quatrain/schedule/build.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

constexpr int kPeriod = 6;  // slots of a micro-batch: two chunks of F, I and W

// Lanes of a rank, in the order of a micro-batch's way: F down, F up, I down (of the upper chunk),
// I up. Weight halves are kWeightHalf; where they are told apart, kWeightHalf + 1 is the near
// chunk's.
enum Lane : std::uint8_t { kForwardDown, kForwardUp, kInputDown, kInputUp, kWeightHalf };

bool goes_down(int lane) { return lane == kForwardDown || lane == kInputDown; }
bool is_input(int lane) { return lane == kInputDown || lane == kInputUp; }

using Slots = std::vector<int>;         // of micro-batch 0, 1, ...
using RankSlots = std::vector<Slots>;   // [lane]
using Layout = std::vector<RankSlots>;  // [rank]

struct Event {
  int slot;
  int rank;
  int lane;
  int index;
  friend auto operator<=>(const Event&, const Event&) = default;
};

int& slot_of(Layout& layout, int rank, int lane, int index) {
  return layout[static_cast<std::size_t>(rank)][static_cast<std::size_t>(lane)]
               [static_cast<std::size_t>(index)];
}

std::vector<Event> in_order(const Layout& layout) {
  std::vector<Event> events;
  for (std::size_t rank = 0; rank < layout.size(); ++rank) {
    for (std::size_t lane = 0; lane < layout[rank].size(); ++lane) {
      for (std::size_t i = 0; i < layout[rank][lane].size(); ++i) {
        events.push_back({layout[rank][lane][i], static_cast<int>(rank), static_cast<int>(lane),
                          static_cast<int>(i)});
      }
    }
  }
  std::sort(events.begin(), events.end());
  return events;
}

// What a rank does in each slot: a lane, or -1.
std::vector<int> lane_by_slot(const RankSlots& rank) {
  int last = 0;
  for (const Slots& lane : rank) last = std::max(last, lane.back());
  std::vector<int> lanes(static_cast<std::size_t>(last) + 1, -1);
  for (std::size_t lane = 0; lane < rank.size(); ++lane) {
    for (int slot : rank[lane]) lanes[static_cast<std::size_t>(slot)] = static_cast<int>(lane);
  }
  return lanes;
}

// Weight halves in the free slots behind their input halves; the rest at the end. One lane for
// both chunks, or the upper chunk's and then the lower's.
void put_weights(RankSlots& rank, bool by_chunk) {
  const std::vector<int> lanes = lane_by_slot(rank);
  rank.resize(by_chunk ? kWeightHalf + 2 : kWeightHalf + 1);
  std::array<int, 2> waiting{};
  const auto put = [&](int slot) {
    const std::size_t chunk = waiting[0] > 0 ? 0 : 1;
    --waiting[chunk];
    rank[kWeightHalf + chunk].push_back(slot);
  };
  int slot = 0;
  for (; slot < static_cast<int>(lanes.size()); ++slot) {
    const int lane = lanes[static_cast<std::size_t>(slot)];
    if (is_input(lane)) ++waiting[by_chunk && lane == kInputUp ? 1 : 0];
    if (lane < 0 && waiting[0] + waiting[1] > 0) put(slot);
  }
  for (; waiting[0] + waiting[1] > 0; ++slot) put(slot);
}

// Chunk activations at once, each from its forward to its weight half. Where weight halves have no
// lane, they fill the free slots.
int peak(const RankSlots& rank) {
  const bool placed = rank.size() > kWeightHalf;
  int now = 0, most = 0, waiting = 0;
  for (int lane : lane_by_slot(rank)) {
    if (lane == kForwardDown || lane == kForwardUp) ++now;
    if (is_input(lane)) ++waiting;
    if (lane == kWeightHalf) --now;
    if (lane < 0 && !placed && waiting > 0) {
      --waiting;
      --now;
    }
    most = std::max(most, now);
  }
  return most;
}

// Everything as early as its inputs and the order of its rank allow, at unit times.
void start_early(Layout& layout) {
  const std::vector<Event> events = in_order(layout);
  std::vector<int> free(layout.size(), 0);
  const int last = static_cast<int>(layout.size()) - 1;
  for (const auto& [old, rank, lane, index] : events) {
    int& begin = free[static_cast<std::size_t>(rank)];
    if (lane < kWeightHalf) {
      if (goes_down(lane) && rank > 0) {
        begin = std::max(begin, slot_of(layout, rank - 1, lane, index) + 1);
      }
      if (!goes_down(lane) && rank < last) {
        begin = std::max(begin, slot_of(layout, rank + 1, lane, index) + 1);
      }
      if (lane > 0) begin = std::max(begin, slot_of(layout, rank, lane - 1, index) + 1);
    }
    slot_of(layout, rank, lane, index) = begin++;
  }
}

// Moves warm-up and cool-down into earlier free slots while no rank's peak passes the present one.
class Squeeze {
 public:
  Squeeze(Layout layout, bool with_weights)
      : layout_(std::move(layout)), with_weights_(with_weights) {
    for (RankSlots& rank : layout_) {
      if (with_weights_) put_weights(rank, false);
      limit_ = std::max(limit_, peak(rank));
      taken_.emplace_back(lane_by_slot(rank).size(), false);
    }
  }

  // Without the weight halves.
  Layout run() {
    for (const Event& event : in_order(layout_)) {
      if (!stays(event)) move(event);
      const int slot = slot_of(layout_, event.rank, event.lane, event.index);
      taken_[static_cast<std::size_t>(event.rank)][static_cast<std::size_t>(slot)] = true;
    }
    for (RankSlots& rank : layout_) {
      if (!with_weights_) put_weights(rank, false);
    }
    start_early(layout_);
    for (RankSlots& rank : layout_) rank.resize(kWeightHalf);
    return std::move(layout_);
  }

 private:
  enum class Phase : std::uint8_t { kWarmUp, kSteady, kCoolDown };

  // The first micro-batch back on rank 0 ends the warm-up, the last forward the steady part. The
  // weight halves of a warm-up are known only in the first squeeze, which alone moves it.
  bool stays(const Event& event) {
    if (phase_ == Phase::kWarmUp && event.lane == kInputUp && event.rank == 0) {
      phase_ = Phase::kSteady;
    }
    if (phase_ == Phase::kWarmUp) return !with_weights_;
    if (phase_ == Phase::kCoolDown) return false;
    const int last = static_cast<int>(layout_[0][kForwardDown].size()) - 1;
    if (event.lane == kForwardDown && event.index == last) phase_ = Phase::kCoolDown;
    return true;
  }

  void move(const Event& event) {
    const auto& [slot, rank, lane, index] = event;
    int& mine = slot_of(layout_, rank, lane, index);
    const auto& taken = taken_[static_cast<std::size_t>(rank)];
    for (int earlier = earliest(event); earlier < slot; ++earlier) {
      if (taken[static_cast<std::size_t>(earlier)]) continue;
      mine = earlier;
      if (peak(layout_[static_cast<std::size_t>(rank)]) <= limit_) return;
    }
    mine = slot;
  }

  int earliest(const Event& event) {
    const auto& [slot, rank, lane, index] = event;
    int after = -1;
    const auto wait_for = [&](int other_rank, int other_lane, int other_index) {
      after = std::max(after, slot_of(layout_, other_rank, other_lane, other_index));
    };
    if (index > 0) wait_for(rank, lane, index - 1);
    if (lane == kWeightHalf) return std::max(after, input_half(rank, index)) + 1;
    if (goes_down(lane) && rank > 0) wait_for(rank - 1, lane, index);
    if (!goes_down(lane) && rank + 1 < static_cast<int>(layout_.size())) {
      wait_for(rank + 1, lane, index);
    }
    if (lane > 0) wait_for(rank, lane - 1, index);
    return after + 1;
  }

  // Slot of a rank's input half number `index`, of either chunk.
  int input_half(int rank, int index) const {
    const RankSlots& lanes = layout_[static_cast<std::size_t>(rank)];
    Slots slots = lanes[kInputDown];
    slots.insert(slots.end(), lanes[kInputUp].begin(), lanes[kInputUp].end());
    const auto nth = slots.begin() + index;
    std::nth_element(slots.begin(), nth, slots.end());
    return *nth;
  }

  Layout layout_;
  bool with_weights_;
  int limit_ = 0;
  std::vector<std::vector<bool>> taken_;
  Phase phase_ = Phase::kWarmUp;
};

using Block = std::array<int, 4>;  // first slot of each lane

Schedule repeated(int num_ranks, int num_microbatches, Block (*block)(int rank, int num_ranks)) {
  Schedule schedule = empty_schedule(StagePlacement::kV, num_ranks, 2, num_microbatches);
  Layout layout(static_cast<std::size_t>(num_ranks));
  for (int rank = 0; rank < num_ranks; ++rank) {
    for (int first : block(rank, num_ranks)) {
      Slots slots;
      for (int m = 0; m < num_microbatches; ++m) slots.push_back(first + kPeriod * m);
      layout[static_cast<std::size_t>(rank)].push_back(std::move(slots));
    }
  }
  layout = Squeeze(Squeeze(std::move(layout), true).run(), false).run();
  for (RankSlots& rank : layout) put_weights(rank, true);
  for (const auto& [slot, rank, lane, index] : in_order(layout)) {
    const bool lower = lane == kForwardDown || lane == kInputUp || lane == kWeightHalf + 1;
    const ActionKind kind = lane < kInputDown    ? ActionKind::kForward
                            : lane < kWeightHalf ? ActionKind::kBackwardInput
                                                 : ActionKind::kBackwardWeight;
    RowWriter(schedule, rank).add(lower ? rank : 2 * num_ranks - 1 - rank, kind, index);
  }
  return schedule;
}

}  // namespace

Schedule v_half(int num_ranks, int num_microbatches) {
  return repeated(num_ranks, num_microbatches, [](int i, int p) -> Block {
    const int shift = p % 2 == 0 ? 3 : 0;  // else slots collide
    return {2 * i, 3 * p - i - 2, 3 * p + shift + 2 * i - 1, 6 * p + shift - i - 2};
  });
}

Schedule v_min(int num_ranks, int num_microbatches) {
  return repeated(num_ranks, num_microbatches, [](int i, int p) -> Block {
    const int shift = p % 3 == 0 ? 2 : 0;
    return {i, 2 * p - i - 1, 2 * p + shift + i, 4 * p + shift - i - 1};
  });
}

}  // namespace quatrain
