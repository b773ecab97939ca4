// SPDX-License-Identifier: Apache-2.0
// What the commands set up alike from a configuration: data, loaders, a rank's job.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "quatrain/data/data_loader.h"
#include "quatrain/data/tokenizer.h"
#include "quatrain/engine/job.h"
#include "quatrain/optim/lr_schedule.h"
#include "quatrain/spec/run_config.h"

namespace quatrain::apps {

// Reads, overrides and checks for `world` ranks (0: what the degrees multiply to), and cuts the
// model into stages where the file leaves that open; throws ConfigError with every problem.
RunConfig load_config(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                      int world = 0);

// Null when the configuration names none. Throws DataError when its ids exceed the vocabulary.
std::unique_ptr<Tokenizer> tokenizer_of(const RunConfig& config);

// Opens every file; text is tokenized into a cache beside the run folders first. Checks every id
// against the vocabulary, unless another rank has (`checked`).
std::vector<DataSource> sources_of(const std::vector<DataPath>& paths, const RunConfig& config,
                                   const Tokenizer* tokenizer, bool checked = false);

// Of one of `size` data ranks.
LoaderOptions loader_options(const RunConfig& config, const Tokenizer* tokenizer, int rank = 0,
                             int size = 1);
BuildOptions build_options(const RunConfig& config);
// Values are drawn, or read from the weights that the configuration names.
RankJobOptions rank_job_options(const RunConfig& config);
LrSchedule lr_schedule_of(const RunConfig& config);
// With the optimizer's step; the same object that the planner would time.
Schedule schedule_of(const RunConfig& config);
// Compute threads of a rank that shares this host with `ranks_here` in all.
int threads_of(const RunConfig& config, int ranks_here = 1);

}  // namespace quatrain::apps
