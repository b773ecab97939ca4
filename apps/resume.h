// SPDX-License-Identifier: Apache-2.0
// checkpoint.resume: where a run goes on, and whether it may.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "apps/console.h"
#include "quatrain/checkpoint/file_system.h"
#include "quatrain/checkpoint/manifest.h"
#include "quatrain/engine/job.h"
#include "quatrain/spec/run_config.h"

namespace quatrain::apps {

struct ResumePoint {
  std::filesystem::path path;  // a checkpoint; or, for the newest whole one, a folder of them
  bool newest = false;
  bool same_run = false;  // of this run's own folder, which goes on
};
// What the configuration asks for; none: to begin. Rank 0 looks, every rank gets its answer or its
// error, as AgreedError. A collective.
std::optional<ResumePoint> find_resume_point(const RunConfig& config, FileSystem& files,
                                             Communicator& world);

// Fills the job's values and its optimizer's state. `data`: kDataEntry of this run. AgreedError
// when the checkpoint is damaged, of another model, or when data would not go on where it stopped.
// A collective.
TrainingState resume(const ResumePoint& point, const RunConfig& config, const std::string& data,
                     FileSystem& files, RankJob& job, Communicator& world);

// A line for each key that differs from the checkpoint's run: "training.global_batch  8 -> 16".
std::string changes_since(const TrainingState& state, const RunConfig& config);

}  // namespace quatrain::apps
