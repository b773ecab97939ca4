// SPDX-License-Identifier: Apache-2.0
// See job.h.
#include "apps/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "apps/weights.h"
#include "quatrain/base/error.h"
#include "quatrain/cost/lower.h"
#include "quatrain/cost/stage_cut.h"

namespace quatrain::apps {
namespace fs = std::filesystem;
namespace {

OptimizerOptions optimizer_options(const RunConfig& config) {
  const auto& keys = config.optimizer;
  return {.name = keys.name,
          .lr = keys.lr,
          .beta1 = keys.beta1,
          .beta2 = keys.beta2,
          .eps = keys.eps,
          .weight_decay = keys.weight_decay,
          .momentum = keys.momentum,
          .nesterov = keys.nesterov,
          .max_norm = keys.max_norm};
}

ExecutorOptions executor_options(const RunConfig& config) {
  ExecutorOptions options;
  options.lr = config.optimizer.lr;
  options.max_norm = config.optimizer.max_norm;
  options.post_validation = config.parallel.post_validation;
  options.z_loss = config.training.z_loss;
  options.router_z_loss = config.training.router_z_loss;
  options.router_bias_rate = config.training.router_bias_rate;
  options.seed = config.run.seed;
  options.trace = config.metrics.trace_steps > 0;
  return options;
}

RouterTraining router_training(const RunConfig& config) {
  const auto& keys = config.training;
  RouterTraining router;
  router.capacity = {keys.expert_capacity, keys.expert_drop == "probability"
                                               ? kernels::DropBy::kProbability
                                               : kernels::DropBy::kPosition};
  if (keys.router_balance == "micro_batch") router.balance = kernels::BalanceOver::kMicrobatch;
  if (keys.router_balance == "global_batch") router.balance = kernels::BalanceOver::kGlobalBatch;
  router.jitter = keys.router_jitter;
  return router;
}

}  // namespace

RunConfig load_config(const fs::path& file, const std::vector<std::string>& overrides, int world) {
  if (!fs::exists(file)) {
    throw ConfigError(fmt::format("{}: no such file; give the TOML file of a run", file.string()));
  }
  if (fs::is_directory(file)) {
    throw ConfigError(fmt::format("{} is a folder; give a TOML file, such as {}", file.string(),
                                  (file / "config.toml").string()));
  }
  RunConfigResult result = read_run_config(file, overrides, world);
  if (result.problems.empty()) result.problems = check(result.config);
  throw_if_any(result.problems);
  balance_stages(result.config);
  schedule_of(result.config);  // that its schedule is defined for these degrees
  return std::move(result.config);
}

std::unique_ptr<Tokenizer> tokenizer_of(const RunConfig& config) {
  if (config.data.tokenizer.empty()) return nullptr;
  std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(config.data.tokenizer);
  if (tokenizer->vocab_size() > config.model.vocab) {
    throw ConfigError(fmt::format(
        "data.tokenizer {}: its {} ids do not fit a model vocabulary of {}; set model.vocab_size "
        "to at least {}",
        config.data.tokenizer, tokenizer->vocab_size(), config.model.vocab,
        tokenizer->vocab_size()));
  }
  return tokenizer;
}

std::vector<DataSource> sources_of(const std::vector<DataPath>& paths, const RunConfig& config,
                                   const Tokenizer* tokenizer, bool checked) {
  OpenOptions options;
  options.format = config.data.format;
  options.tokenizer = tokenizer;
  options.cache = fs::path(config.run.folder).parent_path() / ".tokens";
  options.model_vocab = checked ? 0 : config.model.vocab;
  options.threads = threads_of(config);
  return open_sources(paths, options);
}

LoaderOptions loader_options(const RunConfig& config, const Tokenizer* tokenizer, int rank,
                             int size) {
  LoaderOptions options;
  options.seq_len = config.training.seq_len;
  options.global_batch = config.training.global_batch;
  options.microbatch_size = config.training.micro_batch;
  options.dp_rank = rank;
  options.dp_size = size;
  options.seed = config.run.seed;
  options.mask_documents = config.data.mask_documents;
  if (tokenizer != nullptr) options.eod_id = tokenizer->eod_id();
  options.prefetch = config.data.prefetch;
  return options;
}

BuildOptions build_options(const RunConfig& config) {
  BuildOptions options;
  options.dtype = scalar_type(config.training.dtype);
  options.recompute = config.training.recompute;
  options.trainable = config.training.trainable;
  options.head_chunk_tokens = config.training.head_chunk_tokens;
  options.router = router_training(config);
  return options;
}

RankJobOptions rank_job_options(const RunConfig& config) {
  RankJobOptions options;
  options.spec = config.model;
  options.plan = make_plan(config);
  options.build = build_options(config);
  options.optimizer = optimizer_options(config);
  options.executor = executor_options(config);
  options.schedule = schedule_of(config);
  options.init_seed = config.run.seed;
  if (config.weights != "none") options.fill = fill_from(find_weight_source(config.weights));
  return options;
}

LrSchedule lr_schedule_of(const RunConfig& config) {
  const auto& keys = config.lr_schedule;
  LrSchedule schedule;
  if (keys.type == "constant") schedule.kind = LrScheduleKind::kConstant;
  if (keys.type == "linear") schedule.kind = LrScheduleKind::kLinear;
  if (keys.type == "wsd") schedule.kind = LrScheduleKind::kWsd;
  if (keys.type == "inverse_sqrt") schedule.kind = LrScheduleKind::kInverseSqrt;
  schedule.warmup_steps = keys.warmup_steps;
  schedule.decay_steps = keys.decay_steps;
  schedule.total_steps = static_cast<double>(config.training.steps);
  schedule.min_lr_factor = keys.min_lr_factor;
  return schedule;
}

Schedule schedule_of(const RunConfig& config) {
  return lowered_schedule(config.model, make_plan(config), config.training.trainable);
}

int threads_of(const RunConfig& config, int ranks_here) {
  if (config.run.threads > 0) return config.run.threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks_here);
}

}  // namespace quatrain::apps
