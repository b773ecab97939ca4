// SPDX-License-Identifier: Apache-2.0
// One rank of the training-step benchmark: a model, random tokens and AdamW through the library,
// as a program of a user would put them together.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "quatrain/comm/communicator.h"
#include "quatrain/spec/model_spec.h"

namespace quatrain {

struct BenchModel {
  ModelSpec spec;
  std::int64_t batch;  // sequences a data rank and micro-batch
  std::int64_t seq;
};
// The counterparts of step_torch.py's.
std::map<std::string, BenchModel> bench_models();

struct StepOptions {
  int steps = 6;
  int warmup = 2;
  int threads = 2;  // of each rank
  int zero_stage = 0;
  int accumulation = 1;  // micro-batches a step
  int prefetch = 1;
  int tp = 1;  // ranks that share each matrix
  int cp = 1;  // ranks that share each sequence
  std::string cp_style = "ring";
  int ep = 1;         // ranks that hold a layer's experts between them
  int etp = 0;        // and each one's width; 0: as dense matrices are cut
  int ep_chunks = 1;  // pieces in which they exchange rows
  bool sequence_parallel = false;
  bool gather_again = false;
  int overlap_chunks = 1;
  int pp = 1;  // pipeline ranks
  std::string schedule = "1f1b";
  int chunks = 1;
  std::vector<std::int64_t> layers_per_stage;  // empty: even
  bool bf16 = false;
  std::string trace;  // when not empty: the last step's Chrome trace, as <trace>.<rank>.json
};

// Trains and returns "seconds" and "exposed_comm_s" (blocked on messages and collectives) of each
// measured step, "losses" of the first and the last step, "tokens" of a step over all ranks,
// "peak_tensor_bytes" of the fullest rank and, of pipelines, "clock_s" (step_clock.h). Called by
// every rank of `world`, on its own thread. Throws ConfigError where options.tp x options.pp x
// options.cp does not divide the ranks, and where cp ranks cannot share the sequences.
nlohmann::json measure_steps(std::unique_ptr<Communicator> world, const BenchModel& model,
                             const StepOptions& options);

}  // namespace quatrain
