// SPDX-License-Identifier: Apache-2.0
// What the ranks of a job tell each other about a step for its line in metrics.jsonl: the fullest
// rank's memory, the busiest rank's bytes, and traces.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "apps/metrics.h"
#include "quatrain/comm/communicator.h"
#include "quatrain/comm/counting.h"

namespace quatrain::apps {

// Every rank's text, by rank, on every rank. A collective.
std::vector<std::string> gather_texts(Communicator& world, const std::string& own);

// metrics.peak, comm, exposed_comm_ms and bubble_ms become those of the job: the rank with the
// highest peak, by group and operation the most that a rank sent, the longest stand-stills. A
// collective.
void merge_over_ranks(StepMetrics& metrics, const CommCounts& sent, Communicator& world);

// Each flag becomes true where any rank's is. A collective.
void any_rank(std::span<bool> flags, Communicator& world);

}  // namespace quatrain::apps
