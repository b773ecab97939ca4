// SPDX-License-Identifier: Apache-2.0
#include "quatrain/optim/flat_optimizer.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "quatrain/kernels/check.h"
#include "quatrain/kernels/memory.h"

namespace quatrain {

FlatOptimizer::FlatOptimizer(std::span<const UnitShard> shards, std::vector<std::string> moments)
    : moment_names_(std::move(moments)) {
  for (const UnitShard& shard : shards) {
    std::vector<Run> runs = runs_of(shard);
    if (!runs.empty()) shards_.push_back({shard, std::move(runs), {}, {}, {}});
  }
}

std::vector<FlatOptimizer::Run> FlatOptimizer::runs_of(const UnitShard& shard) {
  std::vector<Run> runs;
  std::int64_t value_end = 0;  // of the last run
  for (const ShardPart& part : parts(shard)) {
    if (!part.param->info.trainable) continue;
    const bool decay = part.param->info.decay;
    if (!runs.empty() && value_end == part.value_begin && runs.back().decay == decay) {
      runs.back().numel += part.numel;
    } else {
      runs.push_back({part.value_begin, part.grad_begin, part.numel, decay});
    }
    value_end = part.value_begin + part.numel;
  }
  return runs;
}

void FlatOptimizer::allocate() {
  const ScopedMemoryCategory category(MemoryCategory::kOptimizer);
  for (ShardState& state : shards_) {
    const at::Tensor& grad = state.shard.grad;
    CHECK(grad.defined(), "unit {} has no gradients", state.shard.unit->name());
    state.master = at::Tensor();
    if (state.shard.value.scalar_type() != grad.scalar_type()) {
      state.master = at::zeros({grad.numel()}, grad.options());
      for (const Run& run : state.runs) {
        state.master.narrow(0, run.grad_begin, run.numel)
            .copy_(state.shard.value.narrow(0, run.value_begin, run.numel));
      }
    }
    state.moments.clear();
    for (std::size_t i = 0; i < moment_names_.size(); ++i) {
      state.moments.push_back(at::zeros({grad.numel()}, grad.options()));
    }
  }
}

FlatOptimizer::Span FlatOptimizer::span(ShardState& state, const Run& run) const {
  const auto of_state = [&](const at::Tensor& flat) {
    return flat.narrow(0, run.grad_begin, run.numel);
  };
  Span span;
  span.value = state.shard.value.narrow(0, run.value_begin, run.numel);
  span.master = state.master.defined() ? of_state(state.master) : span.value;
  span.grad = of_state(state.shard.grad);
  for (const at::Tensor& moment : state.moments) span.moments.push_back(of_state(moment));
  span.decay = run.decay;
  return span;
}

void FlatOptimizer::step(double lr, double grad_scale) {
  ++steps_done_;
  for (ShardState& state : shards_) {
    CHECK(state.moments.size() == moment_names_.size(), "optimizer state of {} is not allocated",
          state.shard.unit->name());
    for (const Run& run : state.runs) {
      Span spans = span(state, run);
      update(spans, lr, grad_scale);
    }
  }
}

std::vector<at::Tensor> FlatOptimizer::all_of(const ShardState& state) {
  std::vector<at::Tensor> all{state.shard.value, state.shard.grad};
  if (state.master.defined()) all.push_back(state.master);
  all.insert(all.end(), state.moments.begin(), state.moments.end());
  return all;
}

void FlatOptimizer::keep() {
  const ScopedMemoryCategory category(MemoryCategory::kOptimizer);
  kept_steps_done_ = steps_done_;
  for (ShardState& state : shards_) {
    const std::vector<at::Tensor> all = all_of(state);
    state.kept.resize(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!state.kept[i].defined()) state.kept[i] = at::empty_like(all[i]);
      state.kept[i].copy_(all[i]);
    }
  }
}

void FlatOptimizer::restore() {
  steps_done_ = kept_steps_done_;
  for (ShardState& state : shards_) {
    const std::vector<at::Tensor> all = all_of(state);
    CHECK(state.kept.size() == all.size(), "nothing of {} is kept", state.shard.unit->name());
    for (std::size_t i = 0; i < all.size(); ++i) all[i].copy_(state.kept[i]);
  }
}

std::vector<std::pair<std::string, at::Tensor>> FlatOptimizer::state(const Param& param) {
  std::vector<std::pair<std::string, at::Tensor>> named;
  if (!param.info.trainable) return named;
  for (ShardState& state : shards_) {
    const std::span<Param> own = state.shard.unit->params();
    if (&param < own.data() || &param >= own.data() + own.size()) continue;
    for (const ShardPart& part : parts(state.shard)) {
      if (part.param != &param) continue;
      const auto view = [&](const at::Tensor& flat) {
        return flat.narrow(0, part.grad_begin, part.numel).view(part.shape());
      };
      if (state.master.defined()) named.emplace_back("master", view(state.master));
      for (std::size_t i = 0; i < state.moments.size(); ++i) {
        named.emplace_back(moment_names_[i], view(state.moments[i]));
      }
    }
  }
  return named;
}

}  // namespace quatrain
