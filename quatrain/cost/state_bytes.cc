// SPDX-License-Identifier: Apache-2.0
// Bytes of parameters, gradients and optimizer state on one rank.
#include "quatrain/cost/walk.h"
#include "quatrain/cost/zero.h"

namespace quatrain {

StateBytes state_bytes(const ModelSpec& model, const Plan& plan, const std::string& optimizer,
                       double momentum, const std::vector<std::string>& trainable, int rank) {
  const ZeroShape shape = zero_shape(model, plan, trainable, rank);
  const int pieces = shape.pieces();
  const auto own = pieces == 1 ? 0 : static_cast<std::size_t>(shape.mesh.coord(Axis::kDpShard));
  std::int64_t values = 0;
  std::int64_t grads = 0;
  std::int64_t updated = 0;
  for (const ZeroUnit& unit : shape.units) {
    const std::int64_t grad_piece = unit.grad_pieces(pieces)[own];
    values += plan.zero_stage == 3 ? unit.value_pieces(pieces)[own] : unit.numel();
    grads += plan.zero_stage >= 2 ? grad_piece : unit.trainable_numel();
    updated += grad_piece;
  }
  const std::int64_t wide_size = size_of(wide(plan.dtype));
  const std::int64_t moments = optimizer == "adamw" ? 2 : (momentum > 0.0 ? 1 : 0);
  const std::int64_t masters = plan.dtype == wide(plan.dtype) ? 0 : 1;
  StateBytes bytes;
  bytes.params = {values * size_of(plan.dtype)};
  bytes.grads = {grads * wide_size};
  bytes.optimizer = {updated * wide_size * (moments + masters)};
  return bytes;
}

}  // namespace quatrain
