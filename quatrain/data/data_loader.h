// SPDX-License-Identifier: Apache-2.0
// Batches as a pure function of (seed, samples consumed of each source, micro-batch): resuming
// needs one number a source, and a change of dp, micro-batch or mixture changes who reads a sample
// when, never repeats or skips one.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quatrain/data/data_source.h"

namespace quatrain {

// One micro-batch of one dp rank. labels: the next token, -100 where not trained (the token after
// an end of document when documents are masked; rows of a missing sample).
struct Batch {
  at::Tensor tokens_BT;     // int64
  at::Tensor labels_BT;     // int64
  at::Tensor positions_BT;  // int64; restart at each document when documents are masked
  at::Tensor documents_BT;  // int64; undefined when documents are not masked
  at::Tensor sample_ids_B;  // int64; -1: missing, fully masked
  std::int64_t trained_tokens = 0;
};

struct LoaderOptions {
  std::int64_t seq_len = 0;
  std::int64_t global_batch = 1;     // sequences a step over all dp ranks
  std::int64_t microbatch_size = 1;  // sequences a rank and micro-batch
  int dp_rank = 0;
  int dp_size = 1;
  std::uint64_t seed = 0;
  bool mask_documents = false;
  std::optional<std::int64_t> eod_id = {};  // document boundaries where the format has none
  bool shuffle = true;
  int prefetch = 2;  // steps read ahead by a helper thread; 0: none
};

// Of the global batch's samples, dp rank r reads a contiguous ascending run, micro-batch m its m-th
// piece. All ranks run the same number of micro-batches; missing samples are fully masked.
class DataLoader {
 public:
  virtual ~DataLoader() = default;
  virtual std::int64_t num_microbatches() const = 0;
  virtual const Batch& microbatch(std::int64_t step, int index) = 0;  // valid until the next step
  // Trained tokens of this rank's whole step.
  virtual std::int64_t trained_tokens(std::int64_t step) = 0;
  // Samples consumed of each source before `step`: what a checkpoint keeps.
  virtual std::vector<std::int64_t> cursor(std::int64_t step) const = 0;
  // Goes on at `first_step` where a checkpoint's cursor says. Training loaders alone; ConfigError
  // when the cursor is not that of these sources.
  virtual void continue_from(std::vector<std::int64_t> cursor, std::int64_t first_step);
};
// Training: shuffled epochs, weighted mixture (sampler.h). Throws ConfigError, also when documents
// are masked and neither the format nor eod_id says where they end. `cursor`: where each source
// continues (empty: 0), counted from step `first_step`.
std::unique_ptr<DataLoader> make_train_loader(std::vector<DataSource> sources,
                                              const LoaderOptions& options,
                                              std::vector<std::int64_t> cursor = {},
                                              std::int64_t first_step = 1);
// Evaluation: every sequence of every source once, in order; the last may be short (masked).
// `step` counts from 0; num_eval_steps() batches of options.global_batch sequences.
std::unique_ptr<DataLoader> make_eval_loader(std::vector<DataSource> sources,
                                             const LoaderOptions& options);
std::int64_t num_eval_steps(const DataLoader& loader);

}  // namespace quatrain
