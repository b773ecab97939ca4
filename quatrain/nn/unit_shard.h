// SPDX-License-Identifier: Apache-2.0
// What one rank owns of a unit: a run of its flat values and gradients. Under ZeRO the ranks of a
// group own one run each, cut by row_cuts(); otherwise a rank owns all of it.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "quatrain/nn/param.h"

namespace quatrain {

struct UnitShard {
  ParamUnit* unit = nullptr;
  std::int64_t begin = 0;  // elements [begin, end) of the unit's flat values
  std::int64_t end = 0;
  at::Tensor value;  // [end - begin], compute dtype
  at::Tensor grad;   // [trainable elements among them], wide; undefined for a frozen unit
};
// All of an allocated unit: views of its flat buffers.
UnitShard whole(ParamUnit& unit);

// The run of one parameter that lies in [begin, end) of its unit: whole rows, or a piece of a
// vector.
struct ShardPart {
  Param* param;
  std::int64_t first;        // its first element within the parameter, row-major
  std::int64_t numel;        // above 0
  std::int64_t value_begin;  // within the shard's values
  std::int64_t grad_begin;   // within the shard's gradients; trainable parameters only
  // Shape of the part: that of the parameter, with fewer rows.
  std::vector<std::int64_t> shape() const;
};
std::vector<ShardPart> parts(ParamUnit& unit, std::int64_t begin, std::int64_t end);
inline std::vector<ShardPart> parts(const UnitShard& shard) {
  return parts(*shard.unit, shard.begin, shard.end);
}
// Where row_cuts() cuts the unit's flat values among `pieces` ranks, and its flat gradient.
struct UnitCuts {
  std::vector<std::int64_t> values, grads;
};
UnitCuts cuts(const ParamUnit& unit, int pieces);

// Fills every value of the shard with the numbers of its name: element i (global row-major index)
// of parameter `name` is draw i of the stream (seed, name), whatever the geometry.
void initialise(const UnitShard& shard, std::uint64_t seed);
inline void initialise(ParamUnit& unit, std::uint64_t seed) { initialise(whole(unit), seed); }

}  // namespace quatrain
