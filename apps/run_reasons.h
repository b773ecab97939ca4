// SPDX-License-Identifier: Apache-2.0
// Why a run had the plan that it had: what the planner says of it on a given cluster.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "quatrain/planner/cluster.h"
#include "quatrain/report/run.h"

namespace quatrain::apps {

// Lines of text: the step as predicted and measured, where its time goes, and the planner's own
// choice with what sets the two apart. `folder` has the config.toml of `run`. A configuration that
// the planner cannot read gives the reason alone.
std::vector<std::string> reasons_of(const RunRecord& run, const std::filesystem::path& folder,
                                    const ClusterSpec& cluster);

}  // namespace quatrain::apps
