// SPDX-License-Identifier: Apache-2.0
// One step as numbers: its line in metrics.jsonl and its line on the console.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "quatrain/engine/executor.h"
#include "quatrain/kernels/memory.h"

namespace quatrain::apps {

struct StepMetrics {
  StepReport report;
  std::int64_t tokens_seen = 0;  // trained and masked positions, all steps so far
  std::int64_t step_tokens = 0;  // positions of this step
  double lr = 0.0;
  double seconds = 0.0;  // wall time of the step
  MemoryUse peak;
  std::optional<double> peak_flops_per_s;  // of this machine, where known: MFU's divisor
  double model_flops = 0.0;                // of this step
  double bubble_ms = 0.0;
  double exposed_comm_ms = 0.0;
  nlohmann::ordered_json comm =
      nlohmann::ordered_json::object();  // calls and bytes by axis, operation

  double tokens_per_s() const { return static_cast<double>(step_tokens) / seconds; }
  std::optional<double> mfu() const;
};

nlohmann::ordered_json to_json(const StepMetrics& metrics);
// "step 12/500  loss 3.1415  grad_norm 0.7100  lr 3.0e-04  25,221 tok/s  ...  eta 0:00:39"
std::string console_line(const StepMetrics& metrics, std::int64_t steps, double eta_seconds);

}  // namespace quatrain::apps
