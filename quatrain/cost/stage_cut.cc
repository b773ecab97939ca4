// SPDX-License-Identifier: Apache-2.0
// Balanced cuts by dynamic programming over (stage, first block). Stage times are compared slowest
// first; that order survives adding one more stage to both sides, so the best cut of all blocks
// contains the best cut of those that follow its first stage.
#include "quatrain/cost/stage_cut.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>

#include "quatrain/base/check.h"
#include "quatrain/base/error.h"
#include "quatrain/cost/local.h"

namespace quatrain {
namespace {

Flops all_passes(const UnitCost& unit) {
  return unit.forward() + unit.backward_input() + unit.backward_weight();
}

// The best cut of the blocks from some block on into some number of stages.
struct Tail {
  std::vector<Flops> times;  // of its stages, slowest first; empty: there is no cut
  std::int64_t layers = 0;   // of its first stage
};
using Tails = std::vector<Tail>;  // by first block

std::vector<Flops> with_stage(std::vector<Flops> times, Flops time) {
  times.insert(std::upper_bound(times.begin(), times.end(), time, std::greater<>()), time);
  return times;
}

// `costs` are of the blocks alone.
Tails last_stage(const std::vector<Flops>& costs, Flops head) {
  Tails tails(costs.size() + 1);
  Flops time = head;
  for (std::size_t begin = costs.size(); begin-- > 0;) {
    time += costs[begin];
    tails[begin] = {{time}, static_cast<std::int64_t>(costs.size() - begin)};
  }
  return tails;
}

// The best cut from block `begin` on whose first stage runs `first` besides its blocks.
Tail best_tail(const std::vector<Flops>& costs, std::size_t begin, Flops first,
               const Tails& behind) {
  Tail best;
  Flops time = first;
  for (std::size_t end = begin + 1; end < costs.size(); ++end) {
    time += costs[end - 1];
    if (behind[end].times.empty()) break;  // too few blocks are left
    if (!best.times.empty() && time > best.times.front()) break;
    std::vector<Flops> times = with_stage(behind[end].times, time);
    if (!best.times.empty() && !(times < best.times)) continue;
    best = {std::move(times), static_cast<std::int64_t>(end - begin)};
  }
  return best;
}

void require_blocks(std::int64_t layers, int stages) {
  if (stages <= layers || stages == 1) return;
  throw ConfigError(
      fmt::format("{} stages for {} layers: at most {} stages, or name the empty ones "
                  "by a 0 in parallel.layers_per_stage",
                  stages, layers, std::max<std::int64_t>(layers, 1)));
}

}  // namespace

std::vector<std::int64_t> balanced_layers(const std::vector<UnitCost>& units, int stages) {
  CHECK(stages >= 1 && units.size() >= 2, "{} stages of {} units", stages, units.size());
  std::vector<Flops> costs;
  std::transform(units.begin() + 1, units.end() - 1, std::back_inserter(costs), all_passes);
  const auto layers = static_cast<std::int64_t>(costs.size());
  require_blocks(layers, stages);
  if (stages == 1) return {layers};

  std::vector<Tails> tails(static_cast<std::size_t>(stages));  // by first stage
  tails.back() = last_stage(costs, all_passes(units.back()));
  for (std::size_t stage = tails.size() - 1; stage-- > 0;) {
    const Flops first = stage == 0 ? all_passes(units.front()) : Flops{};
    tails[stage].resize(costs.size() + 1);
    for (std::size_t begin = stage; begin < costs.size(); ++begin) {
      tails[stage][begin] = best_tail(costs, begin, first, tails[stage + 1]);
      if (stage == 0) break;  // it begins with block 0
    }
  }

  std::vector<std::int64_t> cut;
  std::size_t begin = 0;
  for (const Tails& stage : tails) {
    cut.push_back(stage[begin].layers);
    begin += static_cast<std::size_t>(cut.back());
  }
  return cut;
}

void balance_stages(RunConfig& config) {
  auto& parallel = config.parallel;
  const int stages = parallel.pp * parallel.chunks;
  if (stages == 1 || !parallel.layers_per_stage.empty()) return;
  // Why: shares of tp may be uneven, and the cut must be one; rank 0 holds the largest.
  WorkShape shape = work_shape(make_plan(config), 0);
  shape.trainable = config.training.trainable;
  parallel.layers_per_stage = balanced_layers(walk(config.model, shape), stages);
}

std::vector<StageCost> stage_costs(const ModelSpec& model, const WorkShape& shape,
                                   const std::vector<int>& stage_begin,
                                   const std::vector<int>& rank_of_stage) {
  CHECK(!stage_begin.empty() && stage_begin.size() == rank_of_stage.size(),
        "{} stages, {} of them placed", stage_begin.size(), rank_of_stage.size());
  const std::vector<UnitCost> units = walk(model, shape);
  const std::size_t last = stage_begin.size() - 1;
  std::vector<StageCost> stages(stage_begin.size());
  for (std::size_t s = 0; s <= last; ++s) {
    StageCost& stage = stages[s];
    stage.begin = stage_begin[s];
    stage.end = s == last ? model.layers : stage_begin[s + 1];
    CHECK(0 <= stage.begin && stage.begin <= stage.end && stage.end <= model.layers,
          "stage {} holds blocks {} to {} of {}", s, stage.begin, stage.end, model.layers);
    // Block i is units[i + 1].
    const std::int64_t end = s == last ? stage.end + 2 : stage.end + 1;
    for (std::int64_t i = s == 0 ? 0 : stage.begin + 1; i < end; ++i) {
      const UnitCost& unit = units[static_cast<std::size_t>(i)];
      stage.parameters += unit.parameters();
      stage.forward += unit.forward();
      stage.backward_input += unit.backward_input();
      stage.backward_weight += unit.backward_weight();
    }
  }
  CHECK(stages.front().begin == 0, "no stage holds the blocks before {}", stages.front().begin);
  if (model.tied && rank_of_stage.front() != rank_of_stage.back()) {
    stages.back().table_copy = local_sizes(model, shape.split).vocab * model.hidden;
  }
  return stages;
}

}  // namespace quatrain
