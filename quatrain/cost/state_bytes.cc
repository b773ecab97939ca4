// SPDX-License-Identifier: Apache-2.0
// Bytes of parameters, gradients and optimizer state on one rank.
#include "quatrain/cost/zero.h"

namespace quatrain {

StateBytes state_bytes(const ZeroShape& shape, const std::string& optimizer, double momentum) {
  std::int64_t values = 0;
  std::int64_t grads = 0;
  std::int64_t updated = 0;
  for (const ZeroUnit& unit : shape.units) {
    const std::size_t own = shape.piece(unit);
    const std::int64_t grad_piece = unit.grad_pieces[own];
    values += shape.zero_stage == 3 ? unit.value_pieces[own] : unit.numel();
    grads += shape.zero_stage >= 2 ? grad_piece : unit.trainable_numel();
    updated += grad_piece;
  }
  const std::int64_t wide_size = size_of(wide(shape.dtype));
  const std::int64_t moments = optimizer == "adamw" ? 2 : (momentum > 0.0 ? 1 : 0);
  const std::int64_t masters = shape.dtype == wide(shape.dtype) ? 0 : 1;
  StateBytes bytes;
  bytes.params = {values * size_of(shape.dtype)};
  bytes.grads = {grads * wide_size};
  bytes.optimizer = {updated * wide_size * (moments + masters)};
  return bytes;
}

}  // namespace quatrain
