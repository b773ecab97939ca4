// SPDX-License-Identifier: Apache-2.0
// See trainer.h.
#include "apps/trainer.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "apps/dry_run.h"
#include "apps/job.h"
#include "apps/metrics.h"
#include "apps/run_folder.h"
#include "apps/signals.h"
#include "apps/text.h"
#include "quatrain/base/text.h"
#include "quatrain/comm/self/self.h"
#include "quatrain/cost/walk.h"
#include "quatrain/engine/executor.h"
#include "quatrain/engine/rank_thread.h"
#include "quatrain/hub/hub.h"
#include "quatrain/kernels/check.h"
#include "quatrain/kernels/memory.h"

namespace quatrain::apps {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

ExecutorOptions executor_options(const RunConfig& config) {
  ExecutorOptions options;
  options.lr = config.optimizer.lr;
  options.max_norm = config.optimizer.max_norm;
  options.z_loss = config.training.z_loss;
  options.seed = config.run.seed;
  return options;
}

Model make_model(const RunConfig& config) {
  Model model(config.model, build_options(config));
  model.allocate(true);
  if (config.weights == "none") {
    model.initialise(config.run.seed);
  } else {
    load_weights(model, config.weights);
  }
  return model;
}

}  // namespace

// Members are destroyed from the last to the first: tensors before the books that count them.
struct Trainer::State {
  State(RunConfig resolved, Console& out)
      : config(std::move(resolved)),
        console(out),
        prologue({.threads = threads_of(config), .memory = &memory}),
        tokenizer(tokenizer_of(config)),
        training(make_train_loader(sources_of(config.data.train, config, tokenizer.get()),
                                   loader_options(config, tokenizer.get()))),
        world(make_self_communicator()),
        model(make_model(config)),
        optimizer(make_optimizer(optimizer_options(config), unit_pointers(model))),
        executor(model, *optimizer, *training, *world, executor_options(config)),
        schedule(schedule_of(config)),
        lr_schedule(lr_schedule_of(config)) {
    if (!config.data.validation.empty()) {
      validation = make_eval_loader(sources_of(config.data.validation, config, tokenizer.get()),
                                    loader_options(config, tokenizer.get()));
    }
    optimizer->allocate();
  }

  StepMetrics step(std::int64_t number);
  std::optional<double> validate();
  void sample();
  void introduce();
  void check_books() const;
  void log_step(const StepMetrics& metrics, bool last);
  void finish(const StepMetrics& metrics, int signal);

  RunConfig config;
  Console& console;
  MemoryOwner memory;
  RankThread prologue;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<DataLoader> training;
  std::unique_ptr<DataLoader> validation;
  std::unique_ptr<Communicator> world;
  Model model;
  std::unique_ptr<Optimizer> optimizer;
  Executor executor;
  Schedule schedule;
  LrSchedule lr_schedule;
  std::optional<RunFolder> folder;
  double first_loss = 0.0;
  double total_seconds = 0.0;
  std::optional<double> validation_loss;
};

StepMetrics Trainer::State::step(std::int64_t number) {
  memory.reset_peak();
  StepMetrics metrics;
  const double factor = lr_factor(lr_schedule, number);
  const Clock::time_point begin = Clock::now();
  metrics.report = executor.run(schedule, number, factor);
  metrics.seconds = seconds_since(begin);
  metrics.lr = config.optimizer.lr * factor;
  metrics.step_tokens = config.training.global_batch * config.training.seq_len;
  metrics.tokens_seen = number * metrics.step_tokens;
  metrics.peak = memory.peak();
  metrics.model_flops = model_flops(config.model, config.training.global_batch,
                                    config.training.seq_len, config.training.trainable)
                            .value;
  total_seconds += metrics.seconds;
  if (number == 1) first_loss = metrics.report.loss;
  return metrics;
}

std::optional<double> Trainer::State::validate() {
  if (validation == nullptr) return std::nullopt;
  const Clock::time_point begin = Clock::now();
  const EvalReport report = evaluate(model, *validation, *world);
  validation_loss = report.loss;
  console.line(fmt::format("validation loss {:.4f}  perplexity {:.2f}  ({} tokens, {:.1f} s)",
                           report.loss, std::exp(report.loss), with_commas(report.tokens),
                           seconds_since(begin)));
  return report.loss;
}

void Trainer::State::sample() {
  if (tokenizer == nullptr) return;
  TextRequest request;
  request.prompt = config.metrics.sample_prompt;
  request.tokens = config.metrics.sample_tokens;
  request.seed = config.run.seed;
  console.line("--- sample\n" + printable(generate_text(model, *tokenizer, request)) + "\n---");
}

void Trainer::State::introduce() {
  print_layout(config, console);
  console.line(fmt::format("a step    {} x {} tokens on {} threads", config.training.global_batch,
                           config.training.seq_len, threads_of(config)));
}

// A rank that keeps more or less than its plan says would run out of memory, or train something
// else, much later.
void Trainer::State::check_books() const {
  const StateBytes planned = state_bytes_of(config);
  const MemoryUse live = memory.live();
  for (const auto& [category, bytes] : {std::pair{MemoryCategory::kParams, planned.params},
                                        std::pair{MemoryCategory::kGrads, planned.grads},
                                        std::pair{MemoryCategory::kOptimizer, planned.optimizer}}) {
    CHECK(live[category] == bytes.value, "{}: {} bytes planned, {} allocated", name(category),
          bytes.value, live[category]);
  }
}

void Trainer::State::log_step(const StepMetrics& metrics, bool last) {
  const std::int64_t number = metrics.report.step;
  const double left = static_cast<double>(config.training.steps - number);
  const std::string text = console_line(metrics, config.training.steps,
                                        left * total_seconds / static_cast<double>(number));
  if (number == 1 || last || number % config.metrics.log_every == 0) {
    console.line(text);
  } else {
    console.progress(text);
  }
}

void Trainer::State::finish(const StepMetrics& metrics, int signal) {
  save_weights(model, folder->weights());
  if (tokenizer != nullptr) tokenizer->save(folder->weights());
  if (signal != 0) {
    console.line(fmt::format("stopped by signal {} after step {}", signal, metrics.report.step));
  }
  const double tokens = static_cast<double>(metrics.tokens_seen);
  console.line(fmt::format(
      "loss {:.4f} -> {:.4f}  {} tokens in {}  {} tok/s  weights in {}", first_loss,
      metrics.report.loss, with_commas(metrics.tokens_seen), human_duration(total_seconds),
      with_commas(static_cast<std::int64_t>(tokens / total_seconds)), folder->weights().string()));
  nlohmann::ordered_json document = to_json(metrics);
  document["first_loss"] = first_loss;
  if (validation_loss) document["validation_loss"] = *validation_loss;
  document["folder"] = folder->path().string();
  console.document(document);
}

Trainer::Trainer(RunConfig config, Console& console)
    : state_(std::make_unique<State>(std::move(config), console)) {}
Trainer::~Trainer() = default;

int Trainer::run() {
  State& s = *state_;
  s.check_books();
  s.folder.emplace(s.config);
  s.introduce();
  const StopSignals signals;
  const std::int64_t steps = s.config.training.steps;
  StepMetrics metrics;
  const auto due = [](std::int64_t number, std::int64_t every) {
    return every > 0 && number % every == 0;
  };
  for (std::int64_t number = 1; number <= steps; ++number) {
    metrics = s.step(number);
    const bool last = number == steps || signals.received() != 0;
    s.log_step(metrics, last);
    nlohmann::ordered_json line = to_json(metrics);
    if (due(number, s.config.metrics.eval_every) || last) {
      if (const auto loss = s.validate()) line["validation_loss"] = *loss;
    }
    s.folder->add_metrics(line);
    if (last) break;
    if (due(number, s.config.metrics.sample_every)) s.sample();
  }
  s.finish(metrics, signals.received());
  if (signals.received() == 0) s.sample();
  return 0;
}

}  // namespace quatrain::apps
