// SPDX-License-Identifier: Apache-2.0
// A pipeline's ranks: which blocks each has, how many micro-batches each keeps, and how long the
// slowest waits. The search's schedules have closed forms (docs/schedules.md), which tests hold to
// the clock; others are asked themselves.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "quatrain/planner/layer_times.h"
#include "quatrain/schedule/clock.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {

struct LayerCounts {
  std::array<double, kMostKinds> blocks{};
  double embedding = 0, head = 0;
  double all_blocks() const;
  friend bool operator==(const LayerCounts&, const LayerCounts&) = default;
};
// Of all those layers; `working` is the largest's.
LayerTimes sum_of(const MicrobatchTimes& times, const LayerCounts& layers);

class PipelineLoad {
 public:
  // `kinds`: of each block; `cut`: blocks of each stage. Throws ConfigError where the schedule
  // takes no such counts.
  PipelineLoad(std::string_view schedule, int ranks, int chunks, std::span<const int> kinds,
               std::span<const std::int64_t> cut);

  int ranks() const { return static_cast<int>(of_rank_.size()); }
  int chunks() const { return chunks_; }
  const LayerCounts& of_rank(int rank) const { return of_rank_[static_cast<std::size_t>(rank)]; }
  const std::vector<LayerCounts>& of_stage() const { return of_stage_; }
  // Ranks of which one is the fullest and one the slowest: the first of each that have the same
  // layers, where earlier ranks keep as many micro-batches as later ones.
  const std::vector<int>& telling_ranks() const { return telling_; }

  // Stashes that a rank keeps at the peak, in those of one micro-batch's whole share.
  double in_flight(int rank, std::int64_t microbatches) const;
  bool splits_backward() const { return form_ > Form::kInterleaved; }
  // Of them, those that may wait for their weight half alone; bounds from above.
  double deferred(int rank, std::int64_t microbatches) const;
  // Seconds a step that ranks of equal work stand still. `times`: of a rank's whole share.
  double bubble(std::int64_t microbatches, const RankTimes& times) const;
  Schedule rows(int microbatches) const;

 private:
  enum class Form : std::uint8_t { kAll, kWarmUp, kInterleaved, kH1, kH2, kV, kRows };
  static Form form_of(std::string_view schedule);
  const std::vector<double>& peaks(std::int64_t microbatches) const;

  std::string_view schedule_;
  int chunks_;
  Form form_;
  std::vector<LayerCounts> of_stage_, of_rank_;
  std::vector<int> telling_;
  mutable std::map<std::int64_t, std::vector<double>> peaks_;  // where there is no closed form
};

// Whether it runs through two replicas of the model, of which each rank holds both.
bool holds_two_replicas(std::string_view schedule);

// Of a steady state that repeats, the shortest run with the same ramps: `microbatches` itself, or
// one that leaves the same rest.
int folded(std::int64_t microbatches, int ranks);

}  // namespace quatrain
