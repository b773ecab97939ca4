// SPDX-License-Identifier: Apache-2.0
// A run as plain data: the TOML file that `quatrain train` takes, resolved. Reading returns every
// problem at once, each with file:line, the key, and what would be right.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/mesh/mesh.h"
#include "quatrain/spec/model_spec.h"
#include "quatrain/spec/plan.h"

namespace quatrain {

struct DataPath {
  std::string path;
  double weight = 1.0;
  friend bool operator==(const DataPath&, const DataPath&) = default;
};

struct RunConfig {
  struct Run {
    std::string name = "run";
    std::string folder;  // default runs/<name>
    std::uint64_t seed = 1234;
    int threads = 0;  // compute threads a rank; 0: the cores of this host over its ranks
  } run;
  ModelSpec model;
  std::string weights = "none";  // none | folder
  struct Data {
    std::vector<DataPath> train;
    std::vector<DataPath> validation;
    std::string format = "auto";  // auto | megatron | llmc | nanogpt | text
    std::string tokenizer;        // "bytes" or a path; empty: token files only, no sampling of text
    bool mask_documents = false;
    int prefetch = 2;  // steps
  } data;
  struct Training {
    std::int64_t steps = 1000;
    std::int64_t seq_len = 1024;
    std::int64_t micro_batch = 0;   // sequences a rank; any two of micro_batch, accumulation and
    std::int64_t accumulation = 0;  // global_batch (sequences) give the third
    std::int64_t global_batch = 0;
    Dtype dtype = Dtype::kFloat32;
    Recompute recompute = Recompute::kNone;
    std::vector<std::string> trainable;  // glob patterns; empty: all parameters
    double z_loss = 0.0;
    double router_z_loss = 0.0;
    double router_bias_rate = 0.0;
    std::string router_balance = "sequence";  // sequence | micro_batch | global_batch
    double router_jitter = 0.0;
    double expert_capacity = 0.0;  // 0: no choice is dropped
    std::string expert_drop = "position";
    std::int64_t head_chunk_tokens = 512;
  } training;
  struct Parallel {
    int dp_replicate = 1;
    int dp_shard = 1;  // -1: what is left of the ranks
    int zero = 0;
    int prefetch = 1;
    bool reduce_once = false;
    bool gather_once = false;
    bool post_validation = false;
    int tp = 1;
    bool sequence_parallel = false;
    bool gather_again = false;
    int overlap_chunks = 1;
    int pp = 1;
    std::string schedule = "1f1b";  // one of runnable_schedules()
    int chunks = 1;
    std::vector<std::int64_t> layers_per_stage;
    int cp = 1;
    std::string cp_style = "ring";  // one of kCpStyles
    int cp_heads = 1;
    std::string cp_balance = "zigzag";
    int ep = 1;
    int etp = 1;
    int ep_chunks = 1;
  } parallel;
  struct OptimizerKeys {
    std::string name = "adamw";
    double lr = 3e-4;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;
    double max_norm = 1.0;
    double momentum = 0.0;
    bool nesterov = false;
  } optimizer;
  struct LrScheduleKeys {
    std::string type = "cosine";
    std::string unit = "steps";
    std::int64_t warmup_steps = 0;
    std::int64_t decay_steps = 0;
    double min_lr_factor = 0.1;
  } lr_schedule;
  struct Checkpoint {
    std::int64_t interval = 0;
    std::int64_t keep = 2;
    bool async = true;
    std::string on_error = "continue";
    std::string resume = "never";
  } checkpoint;
  struct Metrics {
    std::int64_t log_every = 10;
    std::int64_t eval_every = 0;
    std::int64_t sample_every = 0;
    std::string sample_prompt;
    std::int64_t sample_tokens = 200;
    std::int64_t trace_steps = 0;
    double logit_alert = 1000.0;  // 0: never
  } metrics;
  struct Comm {
    std::string backend;  // empty: thread, or mpi under a launcher
    double timeout_s = 300.0;
    bool checked = false;
  } comm;
  struct Debug {
    int check_replicas = 0;  // steps between comparisons of what several ranks hold; 0: never
    std::string fault;       // one call that goes wrong: "rank=5,operation=all_gather,action=sleep"
  } debug;
};

struct RunConfigResult {
  RunConfig config;
  Problems problems;  // empty: config is resolved and consistent
};
// Reads a TOML file, applies "section.key=value" overrides, resolves the model (catalogue entry,
// Hugging Face folder or keys) and derives batch numbers for `world` ranks (0: what the degrees
// multiply to). Throws StorageError only when the file cannot be read.
RunConfigResult read_run_config(const std::filesystem::path& file,
                                const std::vector<std::string>& overrides, int world = 0);
// The same from text; `name` stands for the file in messages.
RunConfigResult parse_run_config(std::string_view toml, std::string_view name,
                                 const std::vector<std::string>& overrides, int world = 0);

// What parallel.schedule may be: the generators of schedule/ that have one replica, and file:PATH.
// Which degrees each takes is the generators' to say.
const std::vector<std::string_view>& runnable_schedules();

// All broken rules of a resolved configuration: divisibility, ranges, features.
Problems check(const RunConfig& config);

// The plan that a resolved configuration describes.
Plan make_plan(const RunConfig& config);

// Complete TOML: reading it again gives the same configuration.
std::string to_toml(const RunConfig& config);

// All keys with type, default, unit and meaning, for --help-config; from the parser's own table.
std::string help_config();

}  // namespace quatrain
