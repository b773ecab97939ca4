// SPDX-License-Identifier: Apache-2.0
// Tensors of any shape and dtype, cut among ranks in any way.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "quatrain/checkpoint/piece.h"
#include "quatrain/checkpoint/testing/draws.h"
#include "quatrain/comm/communicator.h"

namespace quatrain::testing {

struct WholeTensor {
  TensorId id;
  at::Tensor values;  // any bits
};

struct JobShape {
  int most_tensors = 5;
  int most_dims = 3;
  std::int64_t most_elements = 2000;  // of a tensor
};
std::vector<WholeTensor> random_tensors(Draws& draws, const JobShape& shape = {});
at::Tensor random_bits(Draws& draws, std::vector<std::int64_t> shape, at::ScalarType dtype);

// By rank. Pieces of a tensor cover it, some of them twice with other cuts; some are held by
// several ranks, some are empty.
std::vector<std::vector<HeldPiece>> random_cut(Draws& draws, std::span<const WholeTensor> tensors,
                                               int ranks);
// The same boxes with memory of their own, of other bits.
std::vector<HeldPiece> empty_copy(std::span<const HeldPiece> pieces);
// What one rank wants when it wants everything.
std::vector<HeldPiece> whole_pieces(std::span<const WholeTensor> tensors);

bool same_bits(const at::Tensor& a, const at::Tensor& b);
// The first piece whose values are not those of the box in its tensor, as text; empty: none.
std::string wrong_piece(std::span<const HeldPiece> pieces, std::span<const WholeTensor> tensors);

// As thread ranks: f(comm).
void for_each_rank(int ranks, const std::function<void(Communicator& comm)>& f);

}  // namespace quatrain::testing
