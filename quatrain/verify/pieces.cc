// SPDX-License-Identifier: Apache-2.0
#include "quatrain/verify/pieces.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>

#include <limits>

#include "quatrain/base/check.h"
#include "quatrain/mesh/shape.h"

namespace quatrain {
namespace {

// The box of a rank's part of a parameter: its rows of the piece that placement leaves it.
Box box_of(const ShardPart& part) {
  Box box{part.param->begin, part.param->local_shape};
  const std::int64_t row = elements(box.size) / box.size[0];
  box.begin[0] += part.first / row;
  box.size[0] = part.numel / row;
  return box;
}

// NaN is further than anything.
void keep_furthest(const at::Tensor& kept, const at::Tensor& other, const at::Tensor& want) {
  const at::Tensor nearer = other.sub(want).abs().le(kept.sub(want).abs());
  kept.copy_(at::where(nearer.logical_or(kept.isnan()), kept, other));
}

ScatteredTensors owned(ZeroUnits& units, const Mesh& mesh, bool grads) {
  ScatteredTensors tensors;
  for (const UnitShard& shard : units.shards()) {
    for (const ShardPart& part : parts(shard)) {
      const ParameterInfo& info = part.param->info;
      if (grads && !info.trainable) continue;
      const at::Tensor flat = grads ? shard.grad.narrow(0, part.grad_begin, part.numel)
                                    : shard.value.narrow(0, part.value_begin, part.numel);
      const Box box = box_of(part);
      tensors[info.name] = {info.shape, {{mesh.rank(), box, flat.view(box.size)}}};
    }
  }
  return tensors;
}

}  // namespace

ScatteredTensors owned_weights(ZeroUnits& units, const Mesh& mesh) {
  return owned(units, mesh, false);
}
ScatteredTensors owned_grads(ZeroUnits& units, const Mesh& mesh) {
  return owned(units, mesh, true);
}

void merge(ScatteredTensors& into, const ScatteredTensors& more) {
  for (const auto& [name, tensor] : more) {
    Scattered& all = into[name];
    all.shape = tensor.shape;
    all.pieces.insert(all.pieces.end(), tensor.pieces.begin(), tensor.pieces.end());
  }
}

at::Tensor assemble(const Scattered& tensor) {
  CHECK(!tensor.pieces.empty(), "a tensor that no rank holds");
  at::Tensor whole = at::full(tensor.shape, std::numeric_limits<double>::quiet_NaN(),
                              tensor.pieces[0].values.options());
  for (auto piece = tensor.pieces.rbegin(); piece != tensor.pieces.rend(); ++piece) {
    within(whole, piece->box).copy_(piece->values);
  }
  return whole;
}

NamedTensors assemble(const ScatteredTensors& tensors) {
  NamedTensors named;
  for (const auto& [name, tensor] : tensors) named.emplace(name, assemble(tensor));
  return named;
}

NamedTensors assemble(const ScatteredTensors& tensors, const NamedTensors& want) {
  NamedTensors named = assemble(tensors);
  for (auto& [name, whole] : named) {
    const auto right = want.find(name);
    if (right == want.end() || right->second.sizes() != whole.sizes()) continue;
    for (const Piece& piece : tensors.at(name).pieces) {
      const at::Tensor kept = within(whole, piece.box);
      if (!at::equal(kept, piece.values)) {
        keep_furthest(kept, piece.values, within(right->second, piece.box));
      }
    }
  }
  return named;
}

}  // namespace quatrain
