// SPDX-License-Identifier: Apache-2.0
// 1F1B-V (Qi et al., arXiv:2405.15362): a V placement with fused backwards, about two thirds of
// 1F1B's peak. As in V-Half, a block repeats every six slots and is then pulled forward where the
// peak allows; a backward takes two slots.
#include <algorithm>
#include <array>

#include "quatrain/schedule/build.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

constexpr int kVPeriod = 6;

// In the order of a micro-batch's way. Each backward is two lanes: its first slot and its second.
enum VLane : std::uint8_t { kFirstForward, kSecondForward, kDown, kDownEnd, kUp, kUpEnd, kLanes };

bool is_forward(int lane) { return lane <= kSecondForward; }
bool begins_backward(int lane) { return lane == kDown || lane == kUp; }
bool ends_backward(int lane) { return lane == kDownEnd || lane == kUpEnd; }

using Starts = std::array<int, kLanes>;  // slot of micro-batch 0

// The way of micro-batch 0: forwards a slot apart, backwards two. Every third backward leaves three
// slots for the forwards of later micro-batches.
std::vector<Starts> block(int num_ranks) {
  std::vector<Starts> starts(static_cast<std::size_t>(num_ranks));
  int slot = kVPeriod;
  for (Starts& rank : starts) rank[kFirstForward] = ++slot;
  for (auto rank = starts.rbegin(); rank != starts.rend(); ++rank) (*rank)[kSecondForward] = ++slot;
  slot += num_ranks % 3 == 0 ? 4 : 1;
  int since_gap = (3 - (num_ranks + 2) % 3) % 3;
  const auto put = [&](Starts& rank, VLane begin) {
    rank[begin] = slot;
    rank[static_cast<std::size_t>(begin) + 1] = slot + 1;
    slot += 2;
    if (++since_gap == 3) {
      since_gap = 0;
      slot += 3;
    }
  };
  for (Starts& rank : starts) put(rank, kDown);
  for (auto rank = starts.rbegin(); rank != starts.rend(); ++rank) put(*rank, kUp);
  return starts;
}

struct VSlot {
  int lane = -1;
  int microbatch = 0;
};

class Compaction {
 public:
  Compaction(int num_ranks, int num_microbatches)
      : ranks_(num_ranks), microbatches_(num_microbatches) {
    const std::vector<Starts> starts = block(num_ranks);
    slots_ = kVPeriod * (4 * num_ranks + num_microbatches + 2);
    for (const Starts& rank : starts) {
      std::vector<VSlot> row(static_cast<std::size_t>(slots_));
      for (int lane = 0; lane < kLanes; ++lane) {
        for (int m = 0; m < microbatches_; ++m) {
          row[static_cast<std::size_t>(rank[static_cast<std::size_t>(lane)] + kVPeriod * m)] = {
              lane, m};
        }
      }
      cells_.push_back(std::move(row));
    }
    at_.assign(static_cast<std::size_t>(ranks_ * kLanes * microbatches_), -1);
    count_live();
  }

  const std::vector<std::vector<VSlot>>& run() {
    for (int slot = 0; slot < slots_; ++slot) {
      for (int rank = 0; rank < ranks_; ++rank) {
        if (cell(rank, slot).lane >= 0) move(rank, slot);
      }
    }
    return cells_;
  }

 private:
  VSlot& cell(int rank, int slot) {
    return cells_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(slot)];
  }
  int& live(int rank, int slot) {
    return live_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(slot)];
  }
  int& at(int rank, int lane, int microbatch) {
    return at_[static_cast<std::size_t>((rank * kLanes + lane) * microbatches_ + microbatch)];
  }
  bool taken(int rank, int slot) { return cell(rank, slot).lane >= 0; }

  void count_live() {
    live_.assign(static_cast<std::size_t>(ranks_), std::vector<int>(cells_[0].size()));
    for (int rank = 0; rank < ranks_; ++rank) {
      int now = 0;
      for (int slot = 0; slot < slots_; ++slot) {
        const int lane = cell(rank, slot).lane;
        if (lane >= 0 && is_forward(lane)) ++now;
        if (ends_backward(lane)) --now;
        live(rank, slot) = now;
        peak_ = std::max(peak_, now);
      }
    }
  }

  // The slot of what must come before.
  int after(int rank, int lane, int m) {
    int slot = m > 0 ? at(rank, lane, m - 1) : -1;
    const auto wait_for = [&](int other_rank, int other_lane) {
      slot = std::max(slot, at(other_rank, other_lane, m));
    };
    const int last = ranks_ - 1;
    if (lane == kFirstForward && rank > 0) wait_for(rank - 1, kFirstForward);
    if (lane == kSecondForward)
      wait_for(std::min(rank + 1, last), rank < last ? lane : kFirstForward);
    if (lane == kDown) wait_for(std::max(rank - 1, 0), rank > 0 ? kDownEnd : kSecondForward);
    if (lane == kUp) wait_for(std::min(rank + 1, last), rank < last ? kUpEnd : kDownEnd);
    if (ends_backward(lane)) wait_for(rank, lane - 1);
    return slot;
  }

  int earlier_slot(int rank, int lane, int first, int slot) {
    if (is_forward(lane)) {  // not into slots where the rank is full
      int lowest = slot;
      while (lowest > first && live(rank, lowest - 1) < peak_) --lowest;
      first = lowest;
    }
    while (first < slot && taken(rank, first)) ++first;
    if (begins_backward(lane)) {
      while (first < slot && (taken(rank, first) || taken(rank, first + 1))) ++first;
    }
    return first;
  }

  void move(int rank, int slot) {
    const VSlot moved = cell(rank, slot);
    const int to =
        earlier_slot(rank, moved.lane, after(rank, moved.lane, moved.microbatch) + 1, slot);
    at(rank, moved.lane, moved.microbatch) = to;
    if (to >= slot) return;
    cell(rank, to) = moved;
    cell(rank, slot) = {};
    const int change = is_forward(moved.lane) ? 1 : ends_backward(moved.lane) ? -1 : 0;
    for (int s = to; s < slot; ++s) live(rank, s) += change;
  }

  int ranks_;
  int microbatches_;
  int slots_ = 0;
  int peak_ = 0;
  std::vector<std::vector<VSlot>> cells_;  // [rank][slot]
  std::vector<std::vector<int>> live_;     // chunk activations
  std::vector<int> at_;                    // [rank][lane][micro-batch] -> slot
};

}  // namespace

Schedule one_f_one_b_v(int num_ranks, int num_microbatches) {
  Schedule schedule = empty_schedule(StagePlacement::kV, num_ranks, 2, num_microbatches);
  Compaction compaction(num_ranks, num_microbatches);
  int rank = 0;
  for (const std::vector<VSlot>& cells : compaction.run()) {
    RowWriter row(schedule, rank);
    const int far = 2 * num_ranks - 1 - rank;
    for (const auto& [lane, m] : cells) {
      if (lane == kFirstForward) row.forward(rank, m);
      if (lane == kSecondForward) row.forward(far, m);
      if (lane == kDown) row.backward(far, m);
      if (lane == kUp) row.backward(rank, m);
    }
    ++rank;
  }
  return schedule;
}

}  // namespace quatrain
