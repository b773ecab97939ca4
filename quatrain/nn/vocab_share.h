// SPDX-License-Identifier: Apache-2.0
// Which words a token table's or a head's local rows stand for.
#pragma once
#include "quatrain/kernels/pointwise.h"
#include "quatrain/nn/layer.h"

namespace quatrain {

inline kernels::VocabShare vocab_share(const ParamRange& table) {
  return {table.first->begin[0], table.first->info.shape[0]};
}

}  // namespace quatrain
