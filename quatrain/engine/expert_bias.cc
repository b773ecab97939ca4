// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/expert_bias.h"

#include <ATen/ops/zeros.h>

namespace quatrain {

// Shards exist when the first step ends.
void ExpertBias::find() {
  found_ = true;
  for (const UnitShard& shard : units_.shards()) {
    for (const ShardPart& part : parts(shard)) {
      const ParameterInfo& info = part.param->info;
      if (!info.name.ends_with(".e_score_correction_bias")) continue;
      Bias& bias = biases_.emplace_back();
      bias.value = shard.value.narrow(0, part.value_begin, part.numel);
      bias.rest = at::zeros({part.numel}, wide(bias.value.scalar_type()));
      bias.layer = info.layer;
      bias.first = part.first;
    }
  }
}

void ExpertBias::update(const at::Tensor& loads_LE) {
  if (rate_ == 0.0 || !loads_LE.defined()) return;
  if (!found_) find();
  for (Bias& bias : biases_) {
    const at::Tensor loads_E = loads_LE[bias.layer];
    at::Tensor steps_E = loads_E.mean().sub(loads_E).sign_().mul_(rate_);
    steps_E = steps_E.sub(steps_E.mean());
    const at::Tensor steps =
        steps_E.narrow(0, bias.first, bias.value.numel()).to(bias.rest.scalar_type());
    const at::Tensor moved = bias.value.to(bias.rest.scalar_type()).add(bias.rest).add_(steps);
    bias.value.copy_(moved);
    bias.rest.copy_(moved.sub(bias.value.to(bias.rest.scalar_type())));
  }
}

}  // namespace quatrain
