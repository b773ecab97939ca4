// SPDX-License-Identifier: Apache-2.0
// Tiny models of every family and a loader whose batches are a function of (step, sample), for the
// tests of this folder.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "quatrain/base/rng.h"
#include "quatrain/comm/self/self.h"
#include "quatrain/data/data_loader.h"
#include "quatrain/engine/executor.h"
#include "quatrain/model/model.h"
#include "quatrain/spec/test_mixtures.h"

namespace quatrain {

inline ModelSpec tiny_llama() {
  ModelSpec m;
  m.name = "tiny-llama";
  m.vocab = 61;
  m.hidden = 32;
  m.layers = 2;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 8;
  m.ffn = 48;
  m.max_positions = 32;
  m.init_std = 0.1;
  return m;
}
inline ModelSpec tiny_gpt2() { return named(as_gpt2(tiny_llama()), "tiny-gpt2"); }
inline ModelSpec tiny_qwen2() {
  ModelSpec m = named(as_qwen2(tiny_llama()), "tiny-qwen2");
  m.window = 5;
  m.window_layers = {false, true};
  return m;
}
inline ModelSpec tiny_qwen3() {
  ModelSpec m = named(as_qwen3(tiny_llama()), "tiny-qwen3");
  m.tied = true;
  return m;
}
inline std::vector<ModelSpec> tiny_mixtures() {
  return {named(as_mixtral(tiny_llama()), "tiny-mixtral"),
          named(as_qwen3_moe(tiny_llama()), "tiny-qwen3-moe"),
          named(as_deepseek(tiny_llama()), "tiny-deepseek"),
          named(with_whole_queries(as_deepseek(tiny_llama())), "tiny-deepseek-queries")};
}
inline ModelSpec with_dropout(ModelSpec m) {
  m.name += "-dropout";
  m.embedding_dropout = 0.1;
  m.residual_dropout = 0.2;
  return m;
}
inline std::vector<ModelSpec> tiny_models() {
  return {tiny_llama(), tiny_gpt2(), tiny_qwen2(), tiny_qwen3()};
}

inline Model make_model(const ModelSpec& spec, const BuildOptions& options) {
  Model model(spec, options);
  model.allocate(true);
  model.initialise(11);
  return model;
}

struct SyntheticOptions {
  std::int64_t vocab = 61;
  std::int64_t seq = 9;
  std::int64_t global_batch = 4;
  std::int64_t microbatch_size = 1;
  int dp_rank = 0;
  int dp_size = 1;
  bool same_every_step = false;
  std::int64_t document_tokens = 0;  // rows hold documents of this length; 0: not masked
  // Trained positions of a sample: the first ones. Default: sample s trains 1 + (3 s) % seq.
  std::function<std::int64_t(std::int64_t sample)> trained = nullptr;
};

// Sample s of a step predicts its next token, of a random row of ids.
class SyntheticLoader final : public DataLoader {
 public:
  explicit SyntheticLoader(SyntheticOptions options) : options_(std::move(options)) {
    if (!options_.trained) {
      const std::int64_t seq = options_.seq;
      options_.trained = [seq](std::int64_t sample) { return 1 + (3 * sample) % seq; };
    }
  }
  std::int64_t num_microbatches() const override {
    const std::int64_t at_once = options_.microbatch_size * options_.dp_size;
    return (options_.global_batch + at_once - 1) / at_once;
  }
  const Batch& microbatch(std::int64_t step, int index) override {
    const std::int64_t B = options_.microbatch_size;
    const std::int64_t T = options_.seq;
    const auto ids = at::TensorOptions(at::kLong);
    batch_ = Batch{};
    batch_.tokens_BT = at::empty({B, T}, ids);
    batch_.labels_BT = at::full({B, T}, -100, ids);
    batch_.positions_BT = at::arange(T, ids).expand({B, T}).contiguous();
    if (options_.document_tokens > 0) {
      const at::Tensor& t_BT = batch_.positions_BT;
      batch_.documents_BT = t_BT.floor_divide(at::full({1}, options_.document_tokens, ids));
      batch_.positions_BT = t_BT.remainder(options_.document_tokens);
    }
    batch_.sample_ids_B = at::full({B}, -1, ids);
    for (std::int64_t b = 0; b < B; ++b) fill(step, first_sample() + index * B + b, b);
    return batch_;
  }
  std::int64_t trained_tokens(std::int64_t) override {
    const std::int64_t end = std::min(
        options_.global_batch, first_sample() + num_microbatches() * options_.microbatch_size);
    std::int64_t sum = 0;
    for (std::int64_t s = first_sample(); s < end; ++s) sum += options_.trained(s);
    return sum;
  }
  std::vector<std::int64_t> cursor(std::int64_t) const override { return {}; }

 private:
  // A rank reads a contiguous run of the global batch.
  std::int64_t first_sample() const {
    return options_.dp_rank * num_microbatches() * options_.microbatch_size;
  }
  void fill(std::int64_t step, std::int64_t sample, std::int64_t row) {
    const bool missing = sample >= options_.global_batch;
    const RandomStream stream(5, static_cast<std::uint64_t>(options_.same_every_step ? 0 : step));
    auto tokens = batch_.tokens_BT.accessor<std::int64_t, 2>();
    auto labels = batch_.labels_BT.accessor<std::int64_t, 2>();
    const auto id = [&](std::int64_t t) {
      const auto draw = static_cast<std::uint64_t>(sample * (options_.seq + 1) + t);
      return static_cast<std::int64_t>(
          stream.below(draw, static_cast<std::uint64_t>(options_.vocab)));
    };
    const std::int64_t trained = missing ? 0 : options_.trained(sample);
    for (std::int64_t t = 0; t < options_.seq; ++t) {
      tokens[row][t] = missing ? 0 : id(t);
      if (t < trained) labels[row][t] = id(t + 1);
    }
    batch_.trained_tokens += trained;
    if (!missing) batch_.sample_ids_B.accessor<std::int64_t, 1>()[row] = sample;
  }

  SyntheticOptions options_;
  Batch batch_;
};

// A model, its optimizer and its data, trained by an executor.
struct Job {
  struct Options {
    ModelSpec spec = tiny_llama();
    BuildOptions build{.dtype = at::kDouble};
    SyntheticOptions data = {};
    OptimizerOptions optimizer{.name = "sgd", .lr = 0.1, .weight_decay = 0.0, .max_norm = 0.0};
    double z_loss = 0.0;
    bool trace = false;
  };
  explicit Job(const Options& o)
      : options(o),
        world(make_self_communicator()),
        groups(make_rank_groups(*world, Mesh(), o.spec.experts.has_value())),
        pipeline(*groups.pipe, {0}),
        model(o.spec, o.build),
        zero(model, groups, 0),
        data(o.data),
        optimizer(make_optimizer(o.optimizer, shards())),
        executor({model, zero, pipeline, *optimizer, data, *world},
                 {.lr = o.optimizer.lr,
                  .max_norm = o.optimizer.max_norm,
                  .z_loss = o.z_loss,
                  .seed = 3,
                  .trace = o.trace}) {
    optimizer->allocate();
  }
  std::vector<ParamUnit*> units() {
    std::vector<ParamUnit*> result;
    for (const auto& unit : model.units()) result.push_back(unit.get());
    return result;
  }
  std::span<const UnitShard> shards() {
    zero.allocate(true);
    zero.initialise(11);
    return zero.shards();
  }
  std::vector<at::Tensor> grads() {
    std::vector<at::Tensor> result;
    for (ParamUnit* unit : units()) {
      for (Param& p : unit->params()) {
        if (p.grad.defined()) result.push_back(p.grad);
      }
    }
    return result;
  }
  Schedule schedule(const std::string& name = "1f1b") const {
    const int m = static_cast<int>(data.num_microbatches());
    return with_optimizer_step(make_schedule(name, {.num_ranks = 1, .num_microbatches = m}));
  }
  StepReport step(std::int64_t number, const Schedule& with) {
    return executor.run(with, number, 1.0);
  }
  StepReport step(std::int64_t number = 1) { return step(number, schedule()); }

  Options options;
  std::unique_ptr<Communicator> world;
  RankGroups groups;
  Pipeline pipeline;
  Model model;
  ZeroUnits zero;
  SyntheticLoader data;
  std::unique_ptr<Optimizer> optimizer;
  Executor executor;
};

// max|a - b| / max|b|.
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide_b = b.to(at::kDouble);
  const double largest = wide_b.abs().max().item<double>();
  const double difference = a.to(at::kDouble).sub(wide_b).abs().max().item<double>();
  return largest == 0.0 ? difference : difference / largest;
}

}  // namespace quatrain
