// SPDX-License-Identifier: Apache-2.0
// Follows a row as the executor does: a reduced gradient is freed when the next one is opened.
#include "quatrain/cost/peaks.h"

#include <algorithm>
#include <set>
#include <span>
#include <tuple>

#include "quatrain/base/check.h"
#include "quatrain/cost/local.h"
#include "quatrain/schedule/action_index.h"

namespace quatrain {
namespace {

void raise(Bytes& peak, std::int64_t bytes) { peak = std::max(peak, Bytes{bytes}); }

std::vector<UnitCost> halves_of(const ModelSpec& model, WorkShape work,
                                std::span<const StageLayers> stages) {
  work.fused_backward = false;
  return walk(model, work, stages);
}

class PeakWalk {
 public:
  PeakWalk(const ZeroShape& shape, const ModelSpec& model, const WorkShape& work)
      : shape_(shape),
        uses_(stage_units(model, shape)),
        costs_(halves_of(model, work, shape.stages)),
        logits_(logits_bytes(model, work).value),
        message_(message_bytes(model, work).value) {}

  RowPeaks run(const std::vector<Action>& row) {
    for (const Action& action : row) step(action);
    return peaks_;
  }

 private:
  void step(const Action& action) {
    switch (action.kind) {
      case ActionKind::kForward:
      case ActionKind::kBackwardInput:
      case ActionKind::kBackwardWeight:
      case ActionKind::kBackward:
        return compute(action);
      case ActionKind::kUnshard:
        gathered_ += gathered_bytes(action);
        return note_buffers();
      case ActionKind::kReshard:
        gathered_ -= gathered_bytes(action);
        return;
      case ActionKind::kReduceGrad:
        if (unit(*action.unit).cut()) reducing_.insert(*action.unit);
        return;
      case ActionKind::kRecvForward:
      case ActionKind::kRecvBackward:
        slots_.insert(slot(action.kind == ActionKind::kRecvForward, action.stage, action));
        return note_buffers();
      case ActionKind::kSendForward:
      case ActionKind::kSendBackward:
        return release(action.kind == ActionKind::kSendForward, action);
      case ActionKind::kReduceTied:
      case ActionKind::kNormPart:
      case ActionKind::kOptimizerStep:
        return;
    }
  }

  // One layer, or all of the stage in the pass's order.
  void compute(const Action& action) {
    const StageLayers& stage = layers_of(shape_.stages, action.stage);
    if (action.unit) return compute(action, stage, *action.unit);
    for (int i = 0; i < stage.size(); ++i) {
      compute(action, stage, action.kind == ActionKind::kForward ? i : stage.size() - 1 - i);
    }
  }

  void compute(const Action& action, const StageLayers& stage, int layer) {
    const LayerUnits& uses = uses_of(stage).at(static_cast<std::size_t>(layer));
    const UnitCost& cost = costs_.at(static_cast<std::size_t>(stage.begin + layer));
    const bool forward = action.kind == ActionKind::kForward;
    if (forward && uses.grads_in_forward) note_logits();
    if (adds_gradients(uses, action.kind)) open(uses);
    if (forward && layer == 0) release(true, action);
    const bool input_half =
        action.kind == ActionKind::kBackwardInput || action.kind == ActionKind::kBackward;
    if (input_half && layer == stage.size() - 1) release(false, action);
    stash_ += stash_change(action.kind, cost);
    raise(peaks_.activations, stash_);
  }

  static std::int64_t stash_change(ActionKind kind, const UnitCost& cost) {
    const std::int64_t whole = cost.stash().value, rest = cost.weight_stash().value;
    if (kind == ActionKind::kForward) return whole;
    if (kind == ActionKind::kBackwardInput) return rest - whole;
    return kind == ActionKind::kBackwardWeight ? -rest : -whole;
  }

  static bool adds_gradients(const LayerUnits& uses, ActionKind kind) {
    if (uses.grads_in_forward) return kind == ActionKind::kForward;
    return kind == ActionKind::kBackwardWeight || kind == ActionKind::kBackward;
  }

  void open(const LayerUnits& uses) {
    if (shape_.zero_stage < 2) return;
    for (const int index : uses.grads) {
      if (!unit(index).cut()) continue;
      if (open_.contains(index) && !reducing_.contains(index)) continue;
      for (const int done : reducing_) {
        whole_ -= grad_bytes(done);
        open_.erase(done);
      }
      reducing_.clear();
      open_.insert(index);
      whole_ += grad_bytes(index);
      raise(peaks_.whole_grads, whole_);
    }
  }

  void note_buffers() {
    const std::int64_t slots = static_cast<std::int64_t>(slots_.size()) * message_;
    raise(peaks_.gathered, gathered_);
    raise(peaks_.slots, slots);
    raise(peaks_.buffers, gathered_ + slots);
  }
  void note_logits() {
    peaks_.logits = Bytes{logits_};
    raise(peaks_.buffers,
          gathered_ + static_cast<std::int64_t>(slots_.size()) * message_ + logits_);
  }

  using Slot = std::tuple<bool, int, int>;  // forward, stage, micro-batch
  static Slot slot(bool forward, int stage, const Action& action) {
    return {forward, stage, action.microbatch.value_or(0)};
  }
  // What the action's stage took over, from a stage without layers on this rank perhaps.
  void release(bool forward, const Action& action) {
    int stage = action.stage;
    do {
      slots_.erase(slot(forward, stage, action));
      stage += forward ? -1 : 1;
    } while (is_empty(stage));
  }
  bool is_empty(int stage) const {
    return std::any_of(shape_.stages.begin(), shape_.stages.end(), [stage](const StageLayers& own) {
      return own.stage == stage && own.size() == 0;
    });
  }
  const StageUnits& uses_of(const StageLayers& stage) const {
    return uses_.at(static_cast<std::size_t>(&stage - shape_.stages.data()));
  }
  std::int64_t gathered_bytes(const Action& action) const {
    const bool gathers = shape_.zero_stage == 3 && unit(*action.unit).cut();
    return gathers ? unit(*action.unit).numel() * size_of(shape_.dtype) : 0;
  }
  std::int64_t grad_bytes(int index) const {
    return unit(index).trainable_numel() * size_of(wide(shape_.dtype));
  }
  const ZeroUnit& unit(int index) const { return shape_.units.at(static_cast<std::size_t>(index)); }

  const ZeroShape& shape_;
  std::vector<StageUnits> uses_;
  std::vector<UnitCost> costs_;
  std::int64_t logits_, message_;
  RowPeaks peaks_{};
  std::int64_t stash_ = 0, gathered_ = 0, whole_ = 0;
  std::set<Slot> slots_;
  std::set<int> open_, reducing_;
};

}  // namespace

RowPeaks row_peaks(const std::vector<Action>& row, const ZeroShape& shape, const ModelSpec& model,
                   const WorkShape& work) {
  return PeakWalk(shape, model, work).run(row);
}

}  // namespace quatrain
