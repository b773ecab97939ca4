// SPDX-License-Identifier: Apache-2.0
// What is composed: the factors and their values, the rules on which combinations exist, and each
// row of values as a run and as the configuration that check() judges.
#pragma once
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "quatrain/spec/run_config.h"
#include "tests/composition/covering_array.h"
#include "tests/pipeline/grid.h"

namespace quatrain {

enum FactorId : std::size_t {
  kReplicate,
  kShard,
  kZero,
  kTp,
  kSequence,
  kPp,
  kSchedule,
  kChunks,
  kEp,
  kEtp,
  kRecompute,
  kWire,
  kBatch,
  kDropout,
  kDocuments,
  kWindow,
  kFamily,
  kOptimizer,
  kCp,
  kCpStyle
};

struct Factor {
  std::string name;
  std::vector<std::string> values;
};

inline std::vector<Factor> composition_factors() {
  std::vector<std::string> schedules;
  for (const RunSchedule& schedule : run_schedules()) schedules.push_back(schedule.name);
  return {{"dp_replicate", {"1", "2"}},
          {"dp_shard", {"1", "2"}},
          {"zero", {"0", "1", "2", "3"}},
          {"tp", {"1", "2"}},
          {"sequence_parallel", {"no", "yes"}},
          {"pp", {"1", "2", "4"}},
          {"schedule", schedules},
          {"chunks", {"1", "2", "3"}},
          {"ep", {"1", "2"}},
          {"etp", {"1", "2"}},
          {"recompute", {"none", "selective", "full"}},
          {"wire", {"plain", "reduce_once", "gather_once", "gather_again", "chunks"}},
          {"batch", {"even", "uneven"}},
          {"dropout", {"no", "yes"}},
          {"documents", {"no", "yes"}},
          {"window", {"no", "yes"}},
          {"family", {"gpt2", "llama", "qwen3", "mixtral", "deepseek"}},
          {"optimizer", {"sgd", "clipped", "adamw"}},
          {"cp", {"1", "2"}},
          {"cp_style", {"ring", "all_gather", "ulysses", "contiguous ring"}}};
}

inline std::string describe(const Row& row) {
  const std::vector<Factor> factors = composition_factors();
  std::string text;
  for (std::size_t f = 0; f < row.size(); ++f) {
    if (row[f] == kOpen) continue;
    text += (text.empty() ? "" : ", ") + factors[f].name + " " +
            factors[f].values[static_cast<std::size_t>(row[f])];
  }
  return text;
}

inline int degree(const Row& row, FactorId factor) { return 1 << row[factor]; }
inline bool has_experts(const Row& row) { return row[kFamily] >= 3; }
inline RunSchedule schedule_of(const Row& row) {
  return run_schedules()[static_cast<std::size_t>(row[kSchedule])];
}
inline int stage_ranks(const Row& row) {
  return degree(row, kReplicate) * degree(row, kShard) * degree(row, kCp) * degree(row, kTp);
}

// A combination that does not exist. `key`: which key the refusal names ("schedule": the
// schedule's own); empty: allowed, but more ranks than these tests start.
struct Refusal {
  std::string key;
  std::string why;
  RowRule rule;
};

inline std::vector<Refusal> composition_refusals() {
  constexpr int kMostRanks = 16;
  const auto any_chunks = [](const Row& r) {
    const std::string name = schedule_of(r).name;
    return name == "interleaved-1f1b" || name == "looped-bfs" || name == "interleaved-zb1p";
  };
  return {
      {"",
       "tests start up to 16 ranks",
       {{kReplicate, kShard, kCp, kTp, kPp},
        [](const Row& r) { return stage_ranks(r) * degree(r, kPp) > kMostRanks; }}},
      {"schedule",
       "the schedule is defined for one chunk a rank, or for the two of a V",
       {{kSchedule, kChunks},
        [any_chunks](const Row& r) {
          return !any_chunks(r) && r[kChunks] + 1 != schedule_of(r).chunks;
        }}},
      {"parallel.ep",
       "there are no experts to deal out",
       {{kEp, kFamily}, [](const Row& r) { return r[kEp] > 0 && !has_experts(r); }}},
      {"parallel.etp",
       "there are no experts to cut",
       {{kEtp, kFamily}, [](const Row& r) { return r[kEtp] > 0 && !has_experts(r); }}},
      {"parallel.ep",
       "the ranks of a stage hold a whole number of copies of its experts",
       {{kEp, kEtp, kReplicate, kShard, kCp, kTp, kFamily},
        [](const Row& r) {
          return has_experts(r) && stage_ranks(r) % (degree(r, kEp) * degree(r, kEtp)) != 0;
        }}},
      {"parallel.gather_again",
       "only sequence parallelism has gathered inputs to drop",
       {{kWire, kSequence}, [](const Row& r) { return r[kWire] == 3 && r[kSequence] == 0; }}},
  };
}

inline RowSpace composition_space() {
  RowSpace space;
  for (const Factor& factor : composition_factors()) {
    space.sizes.push_back(static_cast<int>(factor.values.size()));
  }
  for (const Refusal& refusal : composition_refusals()) space.rules.push_back(refusal.rule);
  return space;
}

// The number in seed.txt: another one, other rows.
inline std::uint32_t composition_seed() {
  std::uint32_t seed = 0;
  std::ifstream(QUATRAIN_SOURCE_DIR "/tests/composition/seed.txt") >> seed;
  return seed;
}

// Micro-batches of a data rank: as many as the schedule asks for, and one more where uneven.
inline int microbatches(const Row& row) {
  return degree(row, kPp) * schedule_of(row).times_ranks + row[kBatch];
}

inline ModelSpec model_of(const Row& row) {
  const std::vector<ModelSpec> mixtures = tensor_mixtures();
  const std::vector<ModelSpec> models = {tensor_gpt2(), tensor_llama(), tensor_qwen3(), mixtures[0],
                                         mixtures[2]};
  ModelSpec spec = models[static_cast<std::size_t>(row[kFamily])];
  spec = with_layers(spec, std::max(2, degree(row, kPp) * (row[kChunks] + 1)));
  if (row[kWindow] > 0) spec.window = 5;
  return row[kDropout] > 0 ? with_dropout(spec) : spec;
}

inline const char* context_style(const Row& row) {
  if (row[kCpStyle] == 1) return "all_gather";
  return row[kCpStyle] == 2 ? "ulysses" : "ring";
}

inline Geometry geometry_of(const Row& row) {
  return {.replicas = degree(row, kReplicate),
          .shards = degree(row, kShard),
          .zero_stage = row[kZero],
          .accumulation = microbatches(row),
          .reduce_once = row[kWire] == 1,
          .schedule = schedule_of(row).name,
          .tensor = degree(row, kTp),
          .sequence_parallel = row[kSequence] > 0 && row[kTp] > 0,
          .gather_again = row[kWire] == 3 && row[kTp] > 0,
          .overlap_chunks = row[kWire] == 4 && row[kTp] > 0 ? 2 : 1,
          .pipeline = degree(row, kPp),
          .chunks = row[kChunks] + 1,
          .gather_once = row[kWire] == 2,
          .ep = degree(row, kEp),
          .etp = has_experts(row) ? degree(row, kEtp) : 0,
          .ep_chunks = row[kWire] == 4 ? 2 : 1,
          .context = degree(row, kCp),
          .context_style = context_style(row),
          .zigzag = row[kCpStyle] != 3};
}

// Every data rank reads a sequence or more each micro-batch; where uneven, the last is missing.
inline Recipe recipe_of(const Row& row) {
  Recipe recipe{.spec = model_of(row),
                .recompute = static_cast<Recompute>(row[kRecompute]),
                .global_batch = 4 * microbatches(row) - row[kBatch],
                .document_tokens = row[kDocuments] > 0 ? 4 : 0,
                .steps = 3};
  if (has_experts(row)) recipe.router_z_loss = 0.01;
  if (has_experts(row) && recipe.spec.experts->selection_bias) recipe.router_bias_rate = 0.05;
  if (row[kOptimizer] == 1) recipe.optimizer.max_norm = 0.5;
  // Where a gradient is hardly larger than eps, AdamW's step has the slope 1 / eps and makes of a
  // gradient's last bit 1e-12 of a weight; gradients have no such slope.
  if (row[kOptimizer] == 2) {
    recipe.optimizer = {
        .name = "adamw", .lr = 1e-3, .eps = 1e-5, .weight_decay = 0.1, .max_norm = 0.5};
  }
  return recipe;
}

// The same as a user writes it.
inline RunConfig config_of(const Row& row) {
  RunConfig config;
  config.model = model_of(row);
  config.comm.backend = "thread";
  config.training.seq_len = 9;
  config.training.micro_batch = 1;
  config.training.accumulation = microbatches(row);
  config.training.dtype = Dtype::kFloat64;
  config.training.recompute = static_cast<Recompute>(row[kRecompute]);
  auto& p = config.parallel;
  p.dp_replicate = degree(row, kReplicate);
  p.dp_shard = degree(row, kShard);
  p.zero = row[kZero];
  p.tp = degree(row, kTp);
  p.sequence_parallel = row[kSequence] > 0;
  p.pp = degree(row, kPp);
  p.schedule = schedule_of(row).name;
  p.chunks = row[kChunks] + 1;
  p.cp = degree(row, kCp);
  p.cp_style = context_style(row);
  p.cp_balance = row[kCpStyle] == 3 ? "contiguous" : "zigzag";
  p.ep = degree(row, kEp);
  p.etp = degree(row, kEtp);
  p.reduce_once = row[kWire] == 1;
  p.gather_once = row[kWire] == 2;
  p.gather_again = row[kWire] == 3;
  p.overlap_chunks = p.ep_chunks = row[kWire] == 4 ? 2 : 1;
  return config;
}

}  // namespace quatrain
