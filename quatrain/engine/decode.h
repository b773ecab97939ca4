// SPDX-License-Identifier: Apache-2.0
// One pass of decoding through all stages: a micro-batch at a time has nothing to overlap, so each
// stage waits for the one before.
#pragma once
#include <ATen/core/Tensor.h>

#include "quatrain/comm/communicator.h"
#include "quatrain/engine/pipeline.h"
#include "quatrain/model/model.h"

namespace quatrain {

// Logits of the last position [B, V], on every rank of the pipeline. `pass` is in kDecode; values
// are whole. `ranks`: those of the pipeline, for what the last stage has to say.
at::Tensor decode_forward(Model& model, Pipeline& pipeline, Communicator& ranks, const Pass& pass);

}  // namespace quatrain
