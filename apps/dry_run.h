// SPDX-License-Identifier: Apache-2.0
// train --dry-run: checks everything, opens the data, prints the layout, the plan's hash, bytes a
// rank by category and FLOPs a step, and stops. All numbers are cost/'s.
#pragma once
#include "apps/console.h"
#include "quatrain/spec/run_config.h"

namespace quatrain::apps {
int dry_run(const RunConfig& config, Console& console);
}  // namespace quatrain::apps
