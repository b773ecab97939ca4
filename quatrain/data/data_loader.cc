// SPDX-License-Identifier: Apache-2.0
// Loaders: the sampler says which samples, the row reader reads them ahead, and here the rows
// become tensors.
#include "quatrain/data/data_loader.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>

#include "quatrain/base/error.h"
#include "quatrain/data/row_reader.h"
#include "quatrain/data/sampler.h"
#include "quatrain/data/step_queue.h"

namespace quatrain {
namespace {

at::Tensor matrix(const std::vector<std::int64_t>& rows, std::int64_t width) {
  return at::tensor(at::ArrayRef<std::int64_t>(rows)).view({-1, width});
}

Batch to_batch(const BatchRows& rows, std::int64_t width) {
  Batch batch;
  batch.tokens_BT = matrix(rows.tokens, width);
  batch.labels_BT = matrix(rows.labels, width);
  batch.positions_BT = matrix(rows.positions, width);
  if (!rows.documents.empty()) batch.documents_BT = matrix(rows.documents, width);
  batch.sample_ids_B = at::tensor(at::ArrayRef<std::int64_t>(rows.sample_ids));
  batch.trained_tokens = rows.trained_tokens;
  return batch;
}

// What training and evaluation share; they differ in the samples of a step.
class Loader : public DataLoader {
 public:
  Loader(std::vector<DataSource> sources, const LoaderOptions& options)
      : options_(options),
        deal_(
            deal(options.global_batch, options.microbatch_size, options.dp_rank, options.dp_size)),
        reader_(std::move(sources), {options.seq_len, options.mask_documents, options.eod_id}) {}

  std::int64_t num_microbatches() const override { return deal_.microbatches; }

  const Batch& microbatch(std::int64_t step, int index) override {
    load(step);
    return batches_.at(static_cast<std::size_t>(index));
  }

  std::int64_t trained_tokens(std::int64_t step) override {
    load(step);
    std::int64_t sum = 0;
    for (const Batch& batch : batches_) sum += batch.trained_tokens;
    return sum;
  }

 protected:
  // This rank's samples of `step`, in order; called by the helper thread.
  virtual std::vector<Sample> samples(std::int64_t step) const = 0;
  // Last in a derived constructor: from here on the helper may call samples().
  void start() {
    queue_ = std::make_unique<StepQueue>([this](std::int64_t step) { return read(step); },
                                         options_.prefetch);
  }
  // First in a derived destructor.
  void stop() {
    queue_.reset();
    loaded_ = false;
  }

  const LoaderOptions& options() const { return options_; }
  const Deal& dealt() const { return deal_; }
  const RowReader& reader() const { return reader_; }

 private:
  StepRows read(std::int64_t step) const {
    const std::vector<Sample> mine = samples(step);
    StepRows rows;
    for (std::int64_t m = 0; m < deal_.microbatches; ++m) {
      const auto size = static_cast<std::int64_t>(mine.size());
      const std::int64_t begin = std::min(size, m * options_.microbatch_size);
      const std::int64_t end = std::min(size, begin + options_.microbatch_size);
      rows.push_back(reader_.read(std::span(mine).subspan(static_cast<std::size_t>(begin),
                                                          static_cast<std::size_t>(end - begin)),
                                  options_.microbatch_size));
    }
    return rows;
  }

  void load(std::int64_t step) {
    if (loaded_ && step == step_) return;
    const StepRows rows = queue_->get(step);
    batches_.clear();
    for (const BatchRows& batch : rows) batches_.push_back(to_batch(batch, options_.seq_len));
    step_ = step;
    loaded_ = true;
  }

  LoaderOptions options_;
  Deal deal_;
  RowReader reader_;
  std::unique_ptr<StepQueue> queue_;
  std::vector<Batch> batches_;
  std::int64_t step_ = 0;
  bool loaded_ = false;
};

class TrainLoader : public Loader {
 public:
  TrainLoader(std::vector<DataSource> sources, const LoaderOptions& options,
              std::vector<std::int64_t> cursor, std::int64_t first_step)
      : Loader(std::move(sources), options) {
    continue_from(std::move(cursor), first_step);
  }
  ~TrainLoader() override { stop(); }
  std::vector<std::int64_t> cursor(std::int64_t step) const override {
    return sampler_->cursor(step);
  }
  void continue_from(std::vector<std::int64_t> cursor, std::int64_t first_step) final {
    stop();  // the helper reads the sampler
    sampler_.emplace(sizes(), Sampler::Options{options().seed, options().global_batch,
                                               options().shuffle, std::move(cursor), first_step});
    start();
  }

 private:
  std::vector<Sample> samples(std::int64_t step) const override {
    return sampler_->samples(step, dealt().begin, dealt().end);
  }
  std::vector<Sampler::Source> sizes() const {
    std::vector<Sampler::Source> out;
    for (std::size_t i = 0; i < reader().sources().size(); ++i) {
      out.push_back({reader().samples(i), reader().sources()[i].weight});
    }
    return out;
  }

  std::optional<Sampler> sampler_;
};

class EvalLoader : public Loader {
 public:
  EvalLoader(std::vector<DataSource> sources, const LoaderOptions& options)
      : Loader(std::move(sources), options) {
    for (std::size_t i = 0; i < reader().sources().size(); ++i) {
      ends_.push_back(reader().samples(i) + (ends_.empty() ? 0 : ends_.back()));
    }
    start();
  }
  ~EvalLoader() override { stop(); }
  std::vector<std::int64_t> cursor(std::int64_t) const override { return {}; }
  std::int64_t steps() const {
    return (ends_.back() + options().global_batch - 1) / options().global_batch;
  }

 private:
  std::vector<Sample> samples(std::int64_t step) const override {
    std::vector<Sample> out;
    for (std::int64_t place = dealt().begin; place < dealt().end; ++place) {
      const std::int64_t at = step * options().global_batch + place;
      const auto source = std::upper_bound(ends_.begin(), ends_.end(), at) - ends_.begin();
      if (at >= ends_.back()) break;
      const std::int64_t first = source == 0 ? 0 : ends_[static_cast<std::size_t>(source) - 1];
      out.push_back({static_cast<int>(source), at - first});
    }
    return out;
  }

  std::vector<std::int64_t> ends_;  // samples up to and with each source
};

}  // namespace

void DataLoader::continue_from(std::vector<std::int64_t>, std::int64_t) {
  throw BugError("only what trains goes on from a checkpoint");
}

std::unique_ptr<DataLoader> make_train_loader(std::vector<DataSource> sources,
                                              const LoaderOptions& options,
                                              std::vector<std::int64_t> cursor,
                                              std::int64_t first_step) {
  return std::make_unique<TrainLoader>(std::move(sources), options, std::move(cursor), first_step);
}

std::unique_ptr<DataLoader> make_eval_loader(std::vector<DataSource> sources,
                                             const LoaderOptions& options) {
  return std::make_unique<EvalLoader>(std::move(sources), options);
}

std::int64_t num_eval_steps(const DataLoader& loader) {
  const auto* eval = dynamic_cast<const EvalLoader*>(&loader);
  if (eval == nullptr) throw BugError("num_eval_steps of a training loader");
  return eval->steps();
}

}  // namespace quatrain
