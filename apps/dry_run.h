// SPDX-License-Identifier: Apache-2.0
// train --dry-run: checks everything, opens the data, prints the layout, the plan's hash, bytes a
// rank by category and FLOPs a step, and stops. All numbers are cost/'s.
#pragma once
#include "apps/console.h"
#include "quatrain/cost/zero.h"
#include "quatrain/spec/run_config.h"

namespace quatrain::apps {
// Exits with 0 or throws; writes nothing.
int dry_run(const RunConfig& config, Console& console);

// What both a run and a dry run print first: model, layout, plan, bytes a rank.
void print_layout(const RunConfig& config, Console& console);
// Bytes of parameters, gradients and optimizer that a rank will keep.
StateBytes state_bytes_of(const RunConfig& config, int rank = 0);
}  // namespace quatrain::apps
