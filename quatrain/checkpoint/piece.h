// SPDX-License-Identifier: Apache-2.0
// What ranks hand to a checkpoint and want back from it.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/checkpoint/manifest.h"

namespace quatrain {

// Where a piece of a tensor lies, without its values.
struct PieceInfo {
  TensorId id;
  std::vector<std::int64_t> shape;  // of the whole tensor
  Box box;                          // may be empty
  std::string dtype;                // as safetensors calls it
  friend bool operator==(const PieceInfo&, const PieceInfo&) = default;
};
std::int64_t bytes_of(const PieceInfo& piece);

// One rank's piece of one tensor. Several ranks may hold the same box.
struct HeldPiece {
  TensorId id;
  std::vector<std::int64_t> shape;
  Box box;
  at::Tensor values;  // of the box's sizes; a view of what the rank holds
};
PieceInfo info_of(const HeldPiece& piece);
std::vector<PieceInfo> infos_of(std::span<const HeldPiece> pieces);

// The part of `values` that lies in `box`, as a view.
at::Tensor values_in(at::Tensor values, const Box& box);

// Lists as text, for ranks to tell each other.
std::string to_text(std::span<const PieceInfo> pieces);
std::vector<PieceInfo> pieces_from_text(std::string_view text);

}  // namespace quatrain
