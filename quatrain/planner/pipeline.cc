// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/pipeline.h"

#include <algorithm>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

StagePlacement placement_of(std::string_view schedule) {
  for (const ScheduleInfo& info : schedule_table()) {
    if (info.name == schedule) return info.placement;
  }
  return StagePlacement::kLinear;
}

}  // namespace

double LayerCounts::all_blocks() const {
  double sum = 0;
  for (const double kind : blocks) sum += kind;
  return sum;
}

LayerTimes sum_of(const MicrobatchTimes& times, const LayerCounts& layers) {
  LayerTimes sum;
  for (std::size_t kind = 0; kind < kMostKinds; ++kind) {
    if (layers.blocks[kind] > 0) sum.add(times.block[kind], layers.blocks[kind]);
  }
  if (layers.embedding > 0) sum.add(times.embedding, 1);
  if (layers.head > 0) sum.add(times.head, 1);
  return sum;
}

PipelineLoad::Form PipelineLoad::form_of(std::string_view schedule) {
  using enum Form;
  constexpr std::pair<std::string_view, Form> kForms[] = {
      {"gpipe", kAll}, {"1f1b", kWarmUp}, {"interleaved-1f1b", kInterleaved},
      {"zb-h1", kH1},  {"zb-h2", kH2},    {"zb-v", kV}};
  for (const auto& [name, form] : kForms) {
    if (name == schedule) return form;
  }
  return kRows;
}

PipelineLoad::PipelineLoad(std::string_view schedule, int ranks, int chunks,
                           std::span<const int> kinds, std::span<const std::int64_t> cut)
    : schedule_(schedule),
      chunks_(chunks),
      form_(form_of(schedule)),
      of_stage_(cut.size()),
      of_rank_(static_cast<std::size_t>(ranks)) {
  CHECK(cut.size() == static_cast<std::size_t>(ranks) * static_cast<std::size_t>(chunks),
        "{} stages of {} ranks with {} chunks", cut.size(), ranks, chunks);
  const std::vector<int> rank_of = place_stages(placement_of(schedule), ranks, chunks).front();
  std::size_t block = 0;
  for (std::size_t stage = 0; stage < cut.size(); ++stage) {
    LayerCounts& layers = of_stage_[stage];
    for (std::int64_t i = 0; i < cut[stage]; ++i) {
      layers.blocks[static_cast<std::size_t>(kinds[block++])] += 1;
    }
    layers.embedding = stage == 0 ? 1 : 0;
    layers.head = stage + 1 == cut.size() ? 1 : 0;
    LayerCounts& whole = of_rank_[static_cast<std::size_t>(rank_of[stage])];
    for (std::size_t kind = 0; kind < kMostKinds; ++kind) whole.blocks[kind] += layers.blocks[kind];
    whole.embedding += layers.embedding;
    whole.head += layers.head;
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const auto known = [&](int other) {
      return of_rank_[static_cast<std::size_t>(other)] == of_rank(rank);
    };
    if (form_ == Form::kRows || std::none_of(telling_.begin(), telling_.end(), known)) {
      telling_.push_back(rank);
    }
  }
}

Schedule PipelineLoad::rows(int microbatches) const {
  ScheduleRequest request;
  request.num_ranks = ranks();
  request.num_microbatches = microbatches;
  request.chunks = chunks_;
  return make_schedule(schedule_, request);
}

const std::vector<double>& PipelineLoad::peaks(std::int64_t microbatches) const {
  const int shown = folded(microbatches, ranks());
  std::vector<double>& peaks = peaks_[shown];
  if (peaks.empty()) peaks = peak_stash(rows(shown));
  return peaks;
}

double PipelineLoad::in_flight(int rank, std::int64_t microbatches) const {
  const auto m = static_cast<double>(microbatches);
  const double p = ranks(), v = chunks_;
  switch (form_) {
    case Form::kAll:
      return m;
    case Form::kWarmUp:
      return std::min(m, p - rank);
    case Form::kInterleaved: {
      // Groups of micro-batches that pass a chunk together: as many equal ones as have p or more.
      const double groups = std::max(1.0, std::floor(m / p));
      const double group = std::ceil(m / groups);
      return std::min(m * v, 2 * (p - 1 - rank) + (v - 1) * group + 1) / v;
    }
    case Form::kH1:
      return std::min(m, p);
    case Form::kH2:
      return std::min(m, 2 * p - 1);
    case Form::kV:
      return std::min(m, p);
    case Form::kRows:
      return peaks(microbatches)[static_cast<std::size_t>(rank)] / v;
  }
  return m;
}

double PipelineLoad::deferred(int rank, std::int64_t microbatches) const {
  switch (form_) {
    case Form::kAll:
    case Form::kWarmUp:
    case Form::kInterleaved:
      return 0.0;
    case Form::kH1:
      return std::min(rank + 1.0, in_flight(rank, microbatches));
    case Form::kH2:
    case Form::kV:
    case Form::kRows:
      return in_flight(rank, microbatches);
  }
  return 0.0;
}

double PipelineLoad::bubble(std::int64_t microbatches, const RankTimes& t) const {
  const double wait = ranks() - 1;
  if (wait == 0) return 0.0;
  const double m = static_cast<double>(microbatches), p = ranks();
  const double all = t.forward + t.input + t.weight;
  const double fill = wait * all;  // what one micro-batch after another costs
  switch (form_) {
    case Form::kAll:
    case Form::kWarmUp:
      return fill;
    case Form::kInterleaved:
      return fill / chunks_;
    case Form::kH1:
      return m < p ? fill : wait * std::max(t.input, t.forward + t.input - t.weight);
    case Form::kH2:
      return m < 2 * p - 1 ? fill : wait * std::max(0.0, t.forward + t.input - 2 * t.weight);
    case Form::kV:
      return m < 2 * p - 1 ? fill / 2
                           : wait * std::max({0.0, t.input - t.weight, t.forward - t.weight});
    case Form::kRows: {
      const Schedule schedule = rows(folded(microbatches, ranks()));
      const Timeline timeline = simulate(schedule, even_durations(schedule, t));
      return timeline.makespan - schedule.num_microbatches * all;
    }
  }
  return fill;
}

bool holds_two_replicas(std::string_view schedule) {
  return placement_of(schedule) == StagePlacement::kDual;
}

int folded(std::int64_t microbatches, int ranks) {
  const std::int64_t longest = 4L * ranks;
  if (microbatches <= longest) return static_cast<int>(microbatches);
  return static_cast<int>(3L * ranks + microbatches % ranks);
}

}  // namespace quatrain
