// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/saved_state.h"

#include <c10/util/accumulate.h>

#include <string>
#include <utility>

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

void load_checkpoint_weights(FileSystem& files, Communicator& world,
                             const std::filesystem::path& checkpoint, ZeroUnits& units) {
  load_checkpoint(files, world, checkpoint, weight_pieces(units), {.allow_extra = true});
  units.gather_kept_values();
}

}  // namespace quatrain
