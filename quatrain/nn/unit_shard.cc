// SPDX-License-Identifier: Apache-2.0
// Runs of a unit's parameters; initial values from counter-based draws, so that every geometry
// starts with the same weights and no rank ever holds more than its own.
#include "quatrain/nn/unit_shard.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "quatrain/base/rng.h"
#include "quatrain/mesh/row_cut.h"
#include "quatrain/mesh/shape.h"
#include "quatrain/nn/check.h"

namespace quatrain {
namespace {

// Draws that are made at once: a buffer that stays in cache.
constexpr std::int64_t kDrawsAtOnce = 16384;

// flat[i] = std * draw (first + i).
template <class Real>
void fill_normal(at::Tensor& flat, const RandomStream& stream, std::int64_t first, double std) {
  const std::int64_t total = flat.numel();
  at::Tensor draws = at::empty({std::min(total, kDrawsAtOnce)},
                               at::TensorOptions(c10::CppTypeToScalarType<Real>::value));
  for (std::int64_t begin = 0; begin < total; begin += kDrawsAtOnce) {
    const std::int64_t count = std::min(total - begin, kDrawsAtOnce);
    const std::span<Real> out(draws.accessor<Real, 1>().data(), static_cast<std::size_t>(count));
    stream.fill_normal(static_cast<std::uint64_t>(first + begin), out);
    for (Real& x : out) x = static_cast<Real>(x * std);
    flat.narrow(0, begin, count).copy_(draws.narrow(0, 0, count));
  }
}

// Calls f(first draw, elements) for the runs of a part that are neighbours in the global tensor:
// all of it where no inner dim is cut, else row by row.
template <class F>
void for_global_runs(const ShardPart& part, const F& f) {
  const Param& p = *part.param;
  const std::int64_t width = elements(p.local_shape) / p.local_shape[0];
  const std::int64_t global_width = elements(p.info.shape) / p.info.shape[0];
  if (width == global_width) return f(p.begin[0] * width + part.first, part.numel);
  CHECK(p.local_shape.size() == 2 && part.first % width == 0 && part.numel % width == 0,
        "\"{}\" is cut inside a row", p.info.name);
  const std::int64_t first_row = p.begin[0] + part.first / width;
  for (std::int64_t row = 0; row < part.numel / width; ++row) {
    f((first_row + row) * global_width + p.begin[1], width);
  }
}

void initialise_part(at::Tensor flat, const ShardPart& part, std::uint64_t seed) {
  const ParameterInfo& info = part.param->info;
  switch (info.init) {
    case Init::kZeros:
      flat.zero_();
      return;
    case Init::kOnes:
      flat.fill_(1.0);
      return;
    case Init::kNormal:
    case Init::kNormalScaledByDepth:
      break;
  }
  const RandomStream stream(seed, info.name);
  std::int64_t at = 0;
  for_global_runs(part, [&](std::int64_t first, std::int64_t count) {
    at::Tensor run = flat.narrow(0, at, count);
    if (flat.scalar_type() == at::kDouble) {
      fill_normal<double>(run, stream, first, info.init_std);
    } else {
      fill_normal<float>(run, stream, first, info.init_std);
    }
    at += count;
  });
}

}  // namespace

UnitShard whole(ParamUnit& unit) {
  CHECK(unit.flat_value().defined(), "unit {} is not allocated", unit.name());
  return {&unit, 0, unit.numel(), unit.flat_value(), unit.flat_grad()};
}

std::vector<std::int64_t> ShardPart::shape() const {
  std::vector<std::int64_t> shape = param->local_shape;
  const std::int64_t row = elements(param->local_shape) / shape[0];
  shape[0] = numel / row;
  return shape;
}

std::vector<ShardPart> parts(ParamUnit& unit, std::int64_t begin, std::int64_t end) {
  std::vector<ShardPart> found;
  std::int64_t grad_begin = 0;
  for (Param& param : unit.params()) {
    const std::int64_t offset = unit.offset(param);
    const std::int64_t from = std::max(begin, offset);
    const std::int64_t to = std::min(end, offset + elements(param.local_shape));
    if (from >= to) continue;
    found.push_back({&param, from - offset, to - from, from - begin, grad_begin});
    if (param.info.trainable) grad_begin += to - from;
  }
  return found;
}

UnitCuts cuts(const ParamUnit& unit, int pieces) {
  std::vector<std::vector<std::int64_t>> shapes;
  std::vector<bool> trainable;
  for (const Param& param : unit.params()) {
    shapes.push_back(param.local_shape);
    trainable.push_back(param.info.trainable);
  }
  UnitCuts result;
  result.values = row_cuts(shapes, pieces);
  result.grads = cuts_of_kept(shapes, trainable, result.values);
  return result;
}

void initialise(const UnitShard& shard, std::uint64_t seed) {
  for (const ShardPart& part : parts(shard)) {
    initialise_part(shard.value.narrow(0, part.value_begin, part.numel), part, seed);
  }
}

}  // namespace quatrain
