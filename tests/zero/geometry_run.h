// SPDX-License-Identifier: Apache-2.0
// A few steps of a tiny model at one geometry, by one of its ranks: what the tests of data
// parallelism compare. Works on any backend's world.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "quatrain/cost/zero.h"
#include "quatrain/engine/engine_test_support.h"
#include "quatrain/engine/job.h"
#include "quatrain/verify/run.h"

namespace quatrain {

inline constexpr std::int64_t kHeadChunk = 7;  // positions whose logits exist at once

struct Geometry {
  int replicas = 1;
  int shards = 1;
  int zero_stage = 0;
  int accumulation = 1;
  int prefetch = 1;
  bool reduce_once = false;
  std::string schedule = "1f1b";
  int tensor = 1;
  bool sequence_parallel = false;
  bool gather_again = false;
  int overlap_chunks = 1;
  int pipeline = 1;
  int chunks = 1;
  std::vector<std::int64_t> layers = {};  // blocks of each stage; empty: even
  bool gather_once = false;
  int ep = 1;
  int etp = 0;  // 0: experts are cut as dense matrices are
  int ep_chunks = 1;
  int context = 1;
  std::string context_style = "ring";
  int context_heads = 1;
  bool zigzag = true;
  int data_ranks() const { return replicas * shards; }
  int ranks() const { return data_ranks() * context * tensor * pipeline; }
  std::string name() const;
};

struct Recipe {
  ModelSpec spec = tiny_qwen3();
  Dtype dtype = Dtype::kFloat64;
  Recompute recompute = Recompute::kNone;
  std::vector<std::string> trainable = {};
  OptimizerOptions optimizer = {.name = "sgd", .lr = 0.1, .weight_decay = 0.0, .max_norm = 0.0};
  std::int64_t global_batch = 24;
  std::int64_t seq = 9;
  std::int64_t document_tokens = 0;  // SyntheticOptions'
  double z_loss = 0.0;
  double router_z_loss = 0.0;
  double router_bias_rate = 0.0;
  RouterTraining router = {};
  int steps = 5;
  std::function<std::int64_t(std::int64_t sample)> trained = nullptr;  // SyntheticOptions'
  // Changes what was drawn: of each parameter this rank's part, [numel], and its first element.
  std::function<void(const ParameterInfo&, at::Tensor part, std::int64_t first)> start = nullptr;
};

// A rank's job and its data, for tests that look inside. Called by every rank of `world`.
struct GeometryData {
  SyntheticLoader data;
};
struct GeometryJob : GeometryData, RankJob {
  GeometryJob(const Recipe& recipe, const Geometry& geometry, Communicator& world);
};

Side side_of(const Recipe& recipe, const Geometry& geometry);
// By collectives alone, on any backend.
RunResult run_geometry(const Recipe& recipe, const Geometry& geometry, Communicator& world);
// On threads of this process.
RunResult run_on_threads(const Recipe& recipe, const Geometry& geometry);

// Largest relative error of losses, norms, gradients and weights, and where it is.
struct Difference {
  double max_rel = 0.0;
  std::string where;
};
Difference difference(const RunResult& got, const RunResult& want);
bool same_bits(const RunResult& a, const RunResult& b);

}  // namespace quatrain
