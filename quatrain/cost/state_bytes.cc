// SPDX-License-Identifier: Apache-2.0
// Bytes of parameters, gradients and optimizer state on one rank.
#include "quatrain/cost/walk.h"
#include "quatrain/spec/parameters.h"

namespace quatrain {

StateBytes state_bytes(const ModelSpec& model, const Plan& plan, const std::string& optimizer,
                       double momentum, const std::vector<std::string>& trainable) {
  std::vector<ParameterInfo> all = parameters(model);
  throw_if_any(set_trainable(all, trainable));
  std::int64_t numel = 0;
  std::int64_t trained = 0;
  for (const ParameterInfo& p : all) {
    numel += p.numel();
    trained += p.trainable ? p.numel() : 0;
  }
  const std::int64_t wide_size = size_of(wide(plan.dtype));
  const std::int64_t moments = optimizer == "adamw" ? 2 : (momentum > 0.0 ? 1 : 0);
  const std::int64_t masters = plan.dtype == wide(plan.dtype) ? 0 : 1;
  StateBytes bytes;
  bytes.params = {numel * size_of(plan.dtype)};
  bytes.grads = {trained * wide_size};
  bytes.optimizer = {trained * wide_size * (moments + masters)};
  return bytes;
}

}  // namespace quatrain
