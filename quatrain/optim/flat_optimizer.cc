// SPDX-License-Identifier: Apache-2.0
#include "quatrain/optim/flat_optimizer.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "quatrain/kernels/check.h"
#include "quatrain/kernels/memory.h"

namespace quatrain {

FlatOptimizer::FlatOptimizer(std::vector<ParamUnit*> units, std::vector<std::string> moments)
    : moment_names_(std::move(moments)) {
  for (ParamUnit* unit : units) {
    std::vector<Run> runs = runs_of(*unit);
    if (!runs.empty()) units_.push_back({unit, std::move(runs), {}, {}});
  }
}

std::vector<FlatOptimizer::Run> FlatOptimizer::runs_of(const ParamUnit& unit) {
  std::vector<Run> runs;
  std::int64_t grad_end = 0;
  std::int64_t value_end = 0;  // of the last run
  for (const Param& param : unit.params()) {
    if (!param.info.trainable) continue;
    std::int64_t numel = 1;
    for (const std::int64_t size : param.local_shape) numel *= size;
    const std::int64_t value_begin = unit.offset(param);
    const bool joins =
        !runs.empty() && value_end == value_begin && runs.back().decay == param.info.decay;
    if (joins) {
      runs.back().numel += numel;
    } else {
      runs.push_back({value_begin, grad_end, numel, param.info.decay});
    }
    grad_end += numel;
    value_end = value_begin + numel;
  }
  return runs;
}

void FlatOptimizer::allocate() {
  const ScopedMemoryCategory category(MemoryCategory::kOptimizer);
  for (UnitState& state : units_) {
    const at::Tensor& grad = state.unit->flat_grad();
    CHECK(grad.defined(), "unit {} has no gradients", state.unit->name());
    state.master = at::Tensor();
    if (state.unit->dtype() != grad.scalar_type()) {
      state.master = at::zeros({grad.numel()}, grad.options());
      for (const Run& run : state.runs) {
        state.master.narrow(0, run.grad_begin, run.numel)
            .copy_(state.unit->flat_value().narrow(0, run.value_begin, run.numel));
      }
    }
    state.moments.clear();
    for (std::size_t i = 0; i < moment_names_.size(); ++i) {
      state.moments.push_back(at::zeros({grad.numel()}, grad.options()));
    }
  }
}

FlatOptimizer::Span FlatOptimizer::span(UnitState& state, const Run& run) const {
  const auto of_state = [&](const at::Tensor& flat) {
    return flat.narrow(0, run.grad_begin, run.numel);
  };
  Span span;
  span.value = state.unit->flat_value().narrow(0, run.value_begin, run.numel);
  span.master = state.master.defined() ? of_state(state.master) : span.value;
  span.grad = of_state(state.unit->flat_grad());
  for (const at::Tensor& moment : state.moments) span.moments.push_back(of_state(moment));
  span.decay = run.decay;
  return span;
}

void FlatOptimizer::step(double lr, double grad_scale) {
  ++steps_done_;
  for (UnitState& state : units_) {
    CHECK(state.moments.size() == moment_names_.size(), "optimizer state of {} is not allocated",
          state.unit->name());
    for (const Run& run : state.runs) {
      Span spans = span(state, run);
      update(spans, lr, grad_scale);
    }
  }
}

std::vector<std::pair<std::string, at::Tensor>> FlatOptimizer::state(const Param& param) {
  std::vector<std::pair<std::string, at::Tensor>> named;
  if (!param.info.trainable) return named;
  for (UnitState& state : units_) {
    const auto params = state.unit->params();
    if (std::none_of(params.begin(), params.end(), [&](Param& p) { return &p == &param; })) {
      continue;
    }
    const std::int64_t begin = state.unit->grad_offset(param);
    const auto view = [&](const at::Tensor& flat) {
      return flat.narrow(0, begin, param.grad.numel()).view(param.local_shape);
    };
    if (state.master.defined()) named.emplace_back("master", view(state.master));
    for (std::size_t i = 0; i < state.moments.size(); ++i) {
      named.emplace_back(moment_names_[i], view(state.moments[i]));
    }
    return named;
  }
  fail_check(__FILE__, __LINE__, "found",
             fmt::format("\"{}\" is of none of the optimizer's units", param.info.name));
}

}  // namespace quatrain
