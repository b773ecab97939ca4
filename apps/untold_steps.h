// SPDX-License-Identifier: Apache-2.0
// Steps whose numbers one rank has and the job does not yet: those since ranks last met.
#pragma once
#include <vector>

#include "apps/metrics.h"
#include "quatrain/comm/communicator.h"
#include "quatrain/comm/counting.h"
#include "quatrain/engine/step_report.h"

namespace quatrain::apps {

class UntoldSteps {
 public:
  // `sent`: by this rank in the step.
  void add(const StepMetrics& metrics, const CommCounts& sent) {
    steps_.push_back({metrics, sent});
  }
  // All stages agree on that step by now.
  void settle(const StepReport& report);
  // All of them, as the job's; none are left. A collective.
  std::vector<StepMetrics> tell(Communicator& world);

 private:
  struct Step {
    StepMetrics metrics;
    CommCounts sent;
  };
  std::vector<Step> steps_;
};

}  // namespace quatrain::apps
