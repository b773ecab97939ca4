// SPDX-License-Identifier: Apache-2.0
// See run_reasons.h.
#include "apps/run_reasons.h"

#include <fmt/format.h>

#include "quatrain/base/error.h"
#include "quatrain/base/text.h"
#include "quatrain/planner/explain.h"
#include "quatrain/report/run_charts.h"
#include "quatrain/spec/run_config.h"

namespace quatrain::apps {
namespace {

Job job_of(const RunConfig& config, const Plan& plan, const ClusterSpec& cluster) {
  Job job;
  job.model = config.model;
  job.cluster = cluster;
  job.gpus = geometry_of(plan).world();
  job.seq = plan.seq_len;
  job.global_batch = config.training.global_batch;
  job.dtype = plan.dtype;
  return job;
}

std::vector<std::string> compared(const RunRecord& run, const RunConfig& config,
                                  const ClusterSpec& cluster) {
  const Job job = job_of(config, run.plan, cluster);
  RankedPlan own{geometry_of(run.plan), {}};
  Estimator estimator(job);
  own.estimate = estimator.settled(own.geometry).estimate;
  const double measured_ms = typical_step(run).step_ms, predicted_ms = 1e3 * own.estimate.step;
  std::vector<std::string> lines = {
      fmt::format("predicted {:.1f} ms a step and {}, measured {:.1f} ms ({:+.0f} %) and {}",
                  predicted_ms, human_bytes(static_cast<std::int64_t>(own.estimate.memory.sum())),
                  measured_ms, 100 * (predicted_ms / measured_ms - 1),
                  human_bytes(static_cast<std::int64_t>(peak_bytes(run)))),
      why(job, own)};
  const SearchResult found = search(job, {});
  if (found.plans.empty()) {
    lines.push_back("nothing fits there: " + why_nothing(job, found));
  } else if (found.plans.front().geometry == own.geometry) {
    lines.push_back("it is the planner's own choice");
  } else {
    lines.push_back("the planner would take " + to_string(found.plans.front().geometry) +
                    "; this one: " + why_not(job, found.plans.front(), own));
  }
  return lines;
}

}  // namespace

std::vector<std::string> reasons_of(const RunRecord& run, const std::filesystem::path& folder,
                                    const ClusterSpec& cluster) {
  try {
    // Its data may have moved: what else is wrong would have stopped the run.
    const RunConfigResult read = read_run_config(folder / "config.toml", {});
    return compared(run, read.config, cluster);
  } catch (const std::runtime_error& error) {
    return {fmt::format("the planner has no answer: {}", error.what())};
  }
}

}  // namespace quatrain::apps
