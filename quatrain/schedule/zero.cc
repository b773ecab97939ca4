// SPDX-License-Identifier: Apache-2.0
#include "quatrain/schedule/zero.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/schedule/build.h"

namespace quatrain {
namespace {

bool computes(ActionKind kind) { return kind <= ActionKind::kBackward; }

Action for_layer(Action action, ActionKind kind, int layer) {
  action.kind = kind;
  action.unit = layer;
  return action;
}

void append_layers(std::vector<Action>& row, const Action& action, int layers,
                   LayerBackward backward) {
  CHECK(!action.overlap && !action.unit, "{} is a pair or one layer already", to_string(action));
  if (action.kind == ActionKind::kForward) {
    for (int l = 0; l < layers; ++l) row.push_back(for_layer(action, action.kind, l));
    return;
  }
  const bool halves = action.kind == ActionKind::kBackward && backward == LayerBackward::kHalves;
  for (int l = layers - 1; l >= 0; --l) {
    if (halves) {
      row.push_back(for_layer(action, ActionKind::kBackwardInput, l));
      row.push_back(for_layer(action, ActionKind::kBackwardWeight, l));
    } else {
      row.push_back(for_layer(action, action.kind, l));
    }
  }
}

using StageUnit = std::pair<int, int>;

// Lowers one row that by_layer() has expanded.
class RowLowering {
 public:
  RowLowering(const std::vector<Action>& row, const ZeroPass& zero) : row_(row), zero_(zero) {
    find_uses();
    find_last_grads();
  }

  std::vector<Action> run() {
    for (std::size_t slot = 0; slot < row_.size(); ++slot) {
      gather_until(slot);
      out_.push_back(row_[slot]);
      free_after(slot);
      reduce_after(slot);
      if (row_[slot].kind == ActionKind::kOptimizerStep) gather_updated(row_[slot].stage);
    }
    return std::move(out_);
  }

 private:
  struct Gather {
    std::size_t first;  // slot of the computation that needs it first
    std::size_t last;   // the last before it is freed
    StageUnit unit;
  };

  const LayerUnits& layer(const Action& action) const {
    const auto stage = static_cast<std::size_t>(action.stage);
    CHECK(stage < zero_.stages.size(), "{}: the units of its stage are unknown", to_string(action));
    return zero_.stages[stage].at(static_cast<std::size_t>(*action.unit));
  }
  std::vector<StageUnit> reads(const Action& action) const {
    std::vector<StageUnit> units;
    if (!computes(action.kind) || action.kind == ActionKind::kBackwardWeight) return units;
    const LayerUnits& uses = layer(action);
    if (action.kind != ActionKind::kForward && !uses.input_half_reads) return units;
    for (int unit : uses.values) units.emplace_back(action.stage, unit);
    return units;
  }
  std::vector<StageUnit> adds_to(const Action& action) const {
    std::vector<StageUnit> units;
    if (!computes(action.kind)) return units;
    const LayerUnits& uses = layer(action);
    const bool weight_half =
        action.kind == ActionKind::kBackwardWeight || action.kind == ActionKind::kBackward;
    const bool adds = uses.grads_in_forward ? action.kind == ActionKind::kForward : weight_half;
    if (!adds) return units;
    for (int unit : uses.grads) units.emplace_back(action.stage, unit);
    return units;
  }

  // Uses that follow each other without another computation that reads between share a gather.
  void find_uses() {
    if (zero_.zero_stage < 3) return;
    std::map<StageUnit, std::size_t> live;  // gathers that the previous reader used
    for (std::size_t slot = 0; slot < row_.size(); ++slot) {
      const std::vector<StageUnit> units = reads(row_[slot]);
      if (units.empty()) continue;
      std::map<StageUnit, std::size_t> now;
      for (const StageUnit& unit : units) {
        const auto kept = live.find(unit);
        if (kept != live.end()) {
          gathers_[kept->second].last = slot;
          now[unit] = kept->second;
        } else {
          gathers_.push_back({slot, slot, unit});
          now[unit] = gathers_.size() - 1;
        }
      }
      live = std::move(now);
    }
    for (std::size_t i = 0; i < gathers_.size(); ++i) freed_.emplace(gathers_[i].last, i);
  }

  // By unit, the slots behind which its gradient is whole: of the step, or of each micro-batch.
  void find_last_grads() {
    const bool once = zero_.zero_stage < 2 || zero_.reduce_once;
    std::map<std::pair<StageUnit, int>, std::size_t> last;
    for (std::size_t slot = 0; slot < row_.size(); ++slot) {
      for (const StageUnit& unit : adds_to(row_[slot])) {
        last[{unit, once ? 0 : row_[slot].microbatch.value_or(0)}] = slot;
      }
    }
    for (const auto& [key, slot] : last) reduces_[slot].push_back(key.first);
  }

  // All that `slot` needs, and the next ones ahead of it. One that is still live comes when it has
  // been freed.
  void gather_until(std::size_t slot) {
    if (reads(row_[slot]).empty()) return;
    while (needed_ < gathers_.size() && gathers_[needed_].first <= slot) ++needed_;
    const auto ahead = static_cast<std::size_t>(zero_.prefetch);
    const std::size_t wanted = std::min(needed_ + ahead, gathers_.size());
    for (; gathered_ < wanted && !live_.contains(gathers_[gathered_].unit); ++gathered_) {
      const auto& [stage, unit] = gathers_[gathered_].unit;
      out_.push_back(on_unit(stage, ActionKind::kUnshard, unit));
      live_.insert(gathers_[gathered_].unit);
    }
  }

  void free_after(std::size_t slot) {
    const auto [begin, end] = freed_.equal_range(slot);
    for (auto it = begin; it != end; ++it) {
      const auto& [stage, unit] = gathers_[it->second].unit;
      out_.push_back(on_unit(stage, ActionKind::kReshard, unit));
      live_.erase(gathers_[it->second].unit);
    }
  }

  void reduce_after(std::size_t slot) {
    const auto found = reduces_.find(slot);
    if (found == reduces_.end()) return;
    for (const auto& [stage, unit] : found->second) {
      Action reduce = on_unit(stage, ActionKind::kReduceGrad, unit);
      if (zero_.zero_stage >= 2 && !zero_.reduce_once) reduce.microbatch = row_[slot].microbatch;
      out_.push_back(reduce);
    }
  }

  void gather_updated(int stage) {
    if (zero_.zero_stage != 1 && zero_.zero_stage != 2) return;
    std::vector<int> updated;
    for (const LayerUnits& layer : zero_.stages.at(static_cast<std::size_t>(stage))) {
      for (int unit : layer.grads) {
        if (std::find(updated.begin(), updated.end(), unit) == updated.end()) {
          updated.push_back(unit);
        }
      }
    }
    for (int unit : updated) out_.push_back(on_unit(stage, ActionKind::kUnshard, unit));
  }

  const std::vector<Action>& row_;
  const ZeroPass& zero_;
  std::vector<Gather> gathers_;                    // in the order of their first use
  std::size_t needed_ = 0;                         // of them, those that the row has needed so far
  std::size_t gathered_ = 0;                       // and those already written
  std::multimap<std::size_t, std::size_t> freed_;  // gathers by the slot of their last use
  std::set<StageUnit> live_;
  std::map<std::size_t, std::vector<StageUnit>> reduces_;
  std::vector<Action> out_;
};

}  // namespace

Schedule by_layer(const Schedule& schedule, std::span<const int> layers_of_stage,
                  LayerBackward backward) {
  CHECK(static_cast<int>(layers_of_stage.size()) == schedule.num_stages,
        "layers of {} stages for a schedule of {}", layers_of_stage.size(), schedule.num_stages);
  return with_rows(schedule, [&](std::vector<Action>& row, const Action& action) {
    if (computes(action.kind)) {
      append_layers(row, action, layers_of_stage[static_cast<std::size_t>(action.stage)], backward);
    } else {
      row.push_back(action);
    }
  });
}

Schedule with_zero(const Schedule& schedule, const ZeroPass& zero) {
  CHECK(zero.zero_stage >= 0 && zero.zero_stage <= 3 && zero.prefetch >= 0,
        "ZeRO stage {}, prefetch {}", zero.zero_stage, zero.prefetch);
  std::vector<int> layers;
  for (const StageUnits& stage : zero.stages) layers.push_back(static_cast<int>(stage.size()));
  Schedule result = by_layer(schedule, layers, zero.backward);
  for (std::vector<Action>& row : result.per_rank) row = RowLowering(row, zero).run();
  return result;
}

}  // namespace quatrain
