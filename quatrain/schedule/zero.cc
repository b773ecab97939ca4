// SPDX-License-Identifier: Apache-2.0
#include "quatrain/schedule/zero.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/schedule/action_index.h"
#include "quatrain/schedule/build.h"

namespace quatrain {
namespace {

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

// Lowers one row that by_layer() has expanded.
class RowLowering {
 public:
  RowLowering(const std::vector<Action>& row, const ZeroPass& zero) : row_(row), zero_(zero) {
    find_uses();
    find_last_grads();
    for (std::size_t slot = 0; slot < row.size(); ++slot) {
      if (row[slot].kind == ActionKind::kOptimizerStep) last_step_ = slot;
    }
  }

  std::vector<Action> run() {
    for (std::size_t slot = 0; slot < row_.size(); ++slot) {
      gather_until(slot);
      out_.push_back(row_[slot]);
      free_after(slot);
      reduce_after(slot);
      if (slot == last_step_) gather_updated();
    }
    return std::move(out_);
  }

 private:
  struct Gather {
    std::size_t first;  // slot of the computation that needs it first
    std::size_t last;   // the last before it is freed
    int unit;
  };

  const LayerUnits& layer(const Action& action) const {
    const auto stage = static_cast<std::size_t>(action.stage);
    CHECK(stage < zero_.stages.size(), "{}: the units of its stage are unknown", to_string(action));
    return zero_.stages[stage].at(static_cast<std::size_t>(*action.unit));
  }
  // Units whose values `action` reads, and those whose gradients it adds to.
  std::span<const int> reads(const Action& action) const {
    if (!is_computation(action.kind) || action.kind == ActionKind::kBackwardWeight) return {};
    const LayerUnits& uses = layer(action);
    if (action.kind != ActionKind::kForward && !uses.input_half_reads) return {};
    return uses.values;
  }
  std::span<const int> adds_to(const Action& action) const {
    if (!is_computation(action.kind)) return {};
    const LayerUnits& uses = layer(action);
    const bool weight_half =
        action.kind == ActionKind::kBackwardWeight || action.kind == ActionKind::kBackward;
    const bool adds = uses.grads_in_forward ? action.kind == ActionKind::kForward : weight_half;
    return adds ? std::span<const int>(uses.grads) : std::span<const int>();
  }

  // Uses that follow each other without another computation that reads between share a gather; with
  // gather_once, all between which the row stays in one stage.
  void find_uses() {
    if (zero_.zero_stage < 3) return;
    std::map<int, std::size_t> live;  // by unit, the gather that its next use may share
    std::size_t reader = 0;           // the last slot that read
    int stage = -1;
    bool stayed = false;  // in its stage, since then
    for (std::size_t slot = 0; slot < row_.size(); ++slot) {
      if (!is_computation(row_[slot].kind)) continue;
      stayed = stayed && row_[slot].stage == stage;
      stage = row_[slot].stage;
      const std::span<const int> units = reads(row_[slot]);
      if (units.empty()) continue;
      if (!(zero_.gather_once && stayed)) {
        std::erase_if(live, [&](const auto& use) { return gathers_[use.second].last != reader; });
      }
      for (const int unit : units) {
        const auto [use, fresh] = live.try_emplace(unit, gathers_.size());
        if (fresh) gathers_.push_back({slot, slot, unit});
        gathers_[use->second].last = slot;
      }
      reader = slot;
      stayed = true;
    }
    for (std::size_t i = 0; i < gathers_.size(); ++i) freed_.emplace(gathers_[i].last, i);
  }

  // By unit, the slots behind which its gradient is whole: of the step, or of each micro-batch.
  void find_last_grads() {
    const bool once = zero_.zero_stage < 2 || zero_.reduce_once;
    std::map<std::pair<int, int>, std::size_t> last;  // (unit, micro-batch)
    for (std::size_t slot = 0; slot < row_.size(); ++slot) {
      for (const int unit : adds_to(row_[slot])) {
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
    for (; gathered_ < wanted && live_.insert(gathers_[gathered_].unit).second; ++gathered_) {
      write(gathers_[gathered_], ActionKind::kUnshard);
    }
  }

  void free_after(std::size_t slot) {
    const auto [begin, end] = freed_.equal_range(slot);
    for (auto it = begin; it != end; ++it) {
      write(gathers_[it->second], ActionKind::kReshard);
      live_.erase(gathers_[it->second].unit);
    }
  }

  void write(const Gather& gather, ActionKind kind) {
    out_.push_back(on_unit(row_[gather.first].stage, kind, gather.unit));
  }

  void reduce_after(std::size_t slot) {
    const auto found = reduces_.find(slot);
    if (found == reduces_.end()) return;
    for (const int unit : found->second) {
      Action reduce = on_unit(row_[slot].stage, ActionKind::kReduceGrad, unit);
      if (zero_.zero_stage >= 2 && !zero_.reduce_once) reduce.microbatch = row_[slot].microbatch;
      out_.push_back(reduce);
    }
  }

  void gather_updated() {
    if (zero_.zero_stage != 1 && zero_.zero_stage != 2) return;
    std::map<int, int> stage_of;  // by unit, the first that trains it
    for (const Action& action : row_) {
      if (action.kind != ActionKind::kOptimizerStep) continue;
      for (const LayerUnits& layer : zero_.stages.at(static_cast<std::size_t>(action.stage))) {
        for (const int unit : layer.grads) stage_of.try_emplace(unit, action.stage);
      }
    }
    for (const auto& [unit, stage] : stage_of) {
      out_.push_back(on_unit(stage, ActionKind::kUnshard, unit));
    }
  }

  const std::vector<Action>& row_;
  const ZeroPass& zero_;
  std::vector<Gather> gathers_;                    // in the order of their first use
  std::size_t needed_ = 0;                         // of them, those that the row has needed so far
  std::size_t gathered_ = 0;                       // and those already written
  std::multimap<std::size_t, std::size_t> freed_;  // gathers by the slot of their last use
  std::set<int> live_;
  std::map<std::size_t, std::vector<int>> reduces_;
  std::optional<std::size_t> last_step_;
  std::vector<Action> out_;
};

}  // namespace

Schedule by_layer(const Schedule& schedule, std::span<const int> layers_of_stage,
                  LayerBackward backward) {
  CHECK(static_cast<int>(layers_of_stage.size()) == schedule.num_stages,
        "layers of {} stages for a schedule of {}", layers_of_stage.size(), schedule.num_stages);
  return with_rows(schedule, [&](std::vector<Action>& row, const Action& action) {
    if (is_computation(action.kind)) {
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
