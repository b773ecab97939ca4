// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/saved_state.h"

#include <ATen/ops/tensor.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <iterator>
#include <sstream>
#include <string>
#include <utility>

#include "quatrain/base/error.h"

#include "quatrain/nn/unit_shard.h"

namespace quatrain {
namespace {

// Of the global tensor: rows of what this rank holds of it, which may be a piece itself.
Box box_of(const ShardPart& part) {
  const Param& param = *part.param;
  Box box{param.begin, part.shape()};
  if (box.begin.empty()) return box;
  const std::int64_t row =
      c10::multiply_integers(param.local_shape.begin() + 1, param.local_shape.end());
  box.begin[0] += part.first / row;
  return box;
}

HeldPiece piece_of(const ShardPart& part, std::string kind, at::Tensor values) {
  const ParameterInfo& info = part.param->info;
  return {{info.name, std::move(kind)}, info.shape, box_of(part), std::move(values)};
}

at::Tensor values_of(const UnitShard& shard, const ShardPart& part) {
  return shard.value.narrow(0, part.value_begin, part.numel).view(part.shape());
}

}  // namespace

std::vector<HeldPiece> weight_pieces(ZeroUnits& units) {
  std::vector<HeldPiece> pieces;
  for (const UnitShard& shard : units.shards()) {
    for (const ShardPart& part : parts(shard)) {
      pieces.push_back(piece_of(part, "weight", values_of(shard, part)));
    }
  }
  return pieces;
}

std::vector<HeldPiece> state_pieces(ZeroUnits& units, Optimizer& optimizer) {
  std::vector<HeldPiece> pieces = weight_pieces(units);
  for (const UnitShard& shard : units.shards()) {
    for (const ShardPart& part : parts(shard)) {
      for (auto& [kind, values] : optimizer.state(*part.param)) {
        pieces.push_back(piece_of(part, std::move(kind), std::move(values)));
      }
    }
  }
  return pieces;
}

void take_up(ZeroUnits& units, Optimizer& optimizer, const TrainingState& state) {
  units.gather_kept_values();
  optimizer.set_steps_done(state.optimizer_steps);
}

// Counts, and so whole numbers: their digits are exact.
void keep_router_loads(TrainingState& state, const Executor& executor) {
  const at::Tensor& loads_LE = executor.router_loads();
  if (!loads_LE.defined()) return;
  std::string& text = state.extra[kRouterLoadsEntry];
  text.clear();
  const at::Tensor flat = loads_LE.reshape({-1});
  const auto loads = flat.accessor<double, 1>();
  for (std::int64_t i = 0; i < loads.size(0); ++i) {
    text += fmt::format("{}{:.0f}", i == 0 ? "" : " ", loads[i]);
  }
}

void take_up_router_loads(const TrainingState& state, const ModelSpec& spec, Executor& executor) {
  const auto found = state.extra.find(kRouterLoadsEntry);
  if (found == state.extra.end() || !spec.experts) return;
  std::istringstream in(found->second);
  const std::vector<double> loads{std::istream_iterator<double>(in), {}};
  const std::int64_t experts = spec.experts->num_experts;
  if (static_cast<std::int64_t>(loads.size()) != spec.layers * experts) {
    throw DataError(fmt::format("the checkpoint has loads of {} experts, the model {} x {}",
                                loads.size(), spec.layers, experts));
  }
  executor.set_router_loads(at::tensor(loads, at::kDouble).view({spec.layers, experts}));
}

void load_checkpoint_weights(FileSystem& files, Communicator& world,
                             const std::filesystem::path& checkpoint, ZeroUnits& units) {
  load_checkpoint(files, world, checkpoint, weight_pieces(units), {.allow_extra = true});
  units.gather_kept_values();
}

}  // namespace quatrain
