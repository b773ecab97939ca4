// SPDX-License-Identifier: Apache-2.0
// Trials of a machine as the cluster file that `plan` and `simulate` read.
#pragma once
#include <span>
#include <string>

#include "quatrain/calibrate/trial.h"

namespace quatrain {

struct HostFacts {
  double memory_bytes = 0;
  Ranks ranks;
};

// A cluster whose accelerators are ranks of this host. Its constants are those with which the
// planner's own formulas give the median trial of each kind: rates of computing and of memory, a
// message's latency and bandwidth. Throws ConfigError naming each kind of which no trial worked.
ClusterSpec cluster_of(std::span<const TrialResult> results, const HostFacts& host);

// Seconds that the planner gives a trial on that cluster: beside what was measured.
double predicted_seconds(const Trial& trial, const ClusterSpec& cluster, int ranks);

// The file: comments say what was measured when, on how many ranks.
std::string calibrated_toml(const ClusterSpec& cluster, const HostFacts& host,
                            std::span<const TrialResult> results);

}  // namespace quatrain
