// SPDX-License-Identifier: Apache-2.0
// The rules of a run. Private to spec/.
#pragma once
#include "quatrain/spec/run_config.h"

namespace quatrain {

// check(config); without `model_known` the rules that need a sound model are left out.
Problems check_run(const RunConfig& config, bool model_known);

}  // namespace quatrain
