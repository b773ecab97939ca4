// SPDX-License-Identifier: Apache-2.0
// See trainer.h.
#include "apps/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "apps/dry_run.h"
#include "apps/job.h"
#include "apps/metrics.h"
#include "apps/rank_metrics.h"
#include "apps/run_folder.h"
#include "apps/signals.h"
#include "apps/text.h"
#include "quatrain/base/file.h"
#include "quatrain/base/log.h"
#include "quatrain/base/text.h"
#include "quatrain/cost/walk.h"
#include "quatrain/engine/decode.h"
#include "quatrain/engine/job.h"
#include "quatrain/engine/rank_thread.h"
#include "quatrain/engine/replica_check.h"
#include "quatrain/engine/run_timeline.h"
#include "quatrain/engine/whole_model.h"
#include "quatrain/hub/hub.h"
#include "quatrain/kernels/check.h"
#include "quatrain/kernels/memory.h"
#include "quatrain/schedule/picture.h"

namespace quatrain::apps {
namespace {

using Clock = std::chrono::steady_clock;

bool due(std::int64_t number, std::int64_t every) { return every > 0 && number % every == 0; }

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

// Members are destroyed from the last to the first: tensors before the books that count them.
struct Trainer::State {
  State(RunConfig resolved, Rank& own, Console& out)
      : config(std::move(resolved)),
        rank(own),
        world(own.world),
        console(out),
        prologue({.threads = threads_of(config, own.ranks_here), .memory = &memory}),
        tokenizer(tokenizer_of(config)),
        training(make_train_loader(sources_here(config.data.train), loader_options_here())),
        job(rank_job_options(config), *training, world),
        lr_schedule(lr_schedule_of(config)) {
    if (!config.data.validation.empty()) {
      validation = make_eval_loader(sources_here(config.data.validation), loader_options_here());
    }
  }

  Mesh mesh() const {
    const Plan plan = make_plan(config);
    return Mesh(plan.degrees, plan.axis_order, world.rank());
  }
  // Of several ranks, rank 0 has checked the ids for all before any came here.
  std::vector<DataSource> sources_here(const std::vector<DataPath>& paths) const {
    return sources_of(paths, config, tokenizer.get(), world.size() > 1);
  }
  LoaderOptions loader_options_here() const {
    const Mesh here = mesh();
    const AxisSet data = AxisSet(Axis::kDpReplicate) | Axis::kDpShard;
    return loader_options(config, tokenizer.get(), here.coord(data), here.degree(data));
  }
  bool speaks() const { return world.rank() == 0; }
  // Holds the model together with the rank that speaks.
  bool beside_speaker() const {
    return job.mesh.group(AxisSet(Axis::kPp) | Axis::kTp).front() == 0;
  }
  void run_step(std::int64_t number);
  void note_settled();
  bool meets_after(std::int64_t number) const;
  std::vector<StepMetrics> meet();
  void tell(StepMetrics& metrics, bool last);
  void write(const std::vector<StepMetrics>& steps, std::optional<double> loss);
  std::optional<double> validate();
  void sample();
  void introduce();
  void check_books() const;
  void log_step(const StepMetrics& metrics, bool last);
  void watch_logits(const StepReport& report);
  void keep_trace(StepMetrics& metrics);
  void add_simulated(const std::vector<std::string>& last, std::vector<std::string>& rows);
  void save();
  void finish(const StepMetrics& metrics, int signal);

  RunConfig config;
  Rank& rank;
  Communicator& world;
  Console& console;
  MemoryOwner memory;
  RankThread prologue;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<DataLoader> training;
  std::unique_ptr<DataLoader> validation;
  RankJob job;
  LrSchedule lr_schedule;
  std::optional<RunFolder> folder;  // of rank 0
  struct Untold {
    StepMetrics metrics;
    CommCounts sent;
  };
  std::vector<Untold> untold;     // steps since ranks last met
  std::vector<TraceEvent> trace;  // of the first metrics.trace_steps steps
  double first_loss = 0.0;
  double total_seconds = 0.0;
  bool warned = false;  // of large logits, in the last step
  std::optional<double> validation_loss;
};

// This rank's part of the step's numbers.
void Trainer::State::run_step(std::int64_t number) {
  memory.reset_peak();
  const CommCounts before = rank.counts;
  StepMetrics metrics;
  const double factor = lr_factor(lr_schedule, number);
  const Clock::time_point begin = Clock::now();
  metrics.report = job.run(number, factor);
  metrics.seconds = seconds_since(begin);
  metrics.lr = config.optimizer.lr * factor;
  metrics.step_tokens = config.training.global_batch * config.training.seq_len;
  metrics.tokens_seen = number * metrics.step_tokens;
  metrics.peak = memory.peak();
  metrics.exposed_comm_ms = metrics.report.exposed_comm_ms;
  metrics.bubble_ms = metrics.report.bubble_ms;
  metrics.model_flops = model_flops(config.model, config.training.global_batch,
                                    config.training.seq_len, config.training.trainable)
                            .value;
  total_seconds += metrics.seconds;
  untold.push_back({metrics, rank.counts.since(before)});
  note_settled();
}

// Of steps that all stages agree on by now.
void Trainer::State::note_settled() {
  const StepReport& settled = job.executor.settled();
  for (Untold& step : untold) {
    if (step.metrics.report.step == settled.step) step.metrics.report = settled;
  }
}

// Ranks meet after every step, or where post-validation lets them run on, when something is due.
bool Trainer::State::meets_after(std::int64_t number) const {
  return !config.parallel.post_validation || number == config.training.steps ||
         number <= config.metrics.trace_steps || due(number, config.metrics.log_every) ||
         due(number, config.metrics.eval_every) || due(number, config.metrics.sample_every) ||
         due(number, config.debug.check_replicas);
}

// The steps since ranks last met, as the job's.
std::vector<StepMetrics> Trainer::State::meet() {
  job.executor.settle();
  note_settled();
  std::vector<StepMetrics> steps;
  for (Untold& step : untold) {
    merge_over_ranks(step.metrics, step.sent, world);
    if (step.metrics.report.step == 1) first_loss = step.metrics.report.loss;
    steps.push_back(std::move(step.metrics));
  }
  untold.clear();
  return steps;
}

std::optional<double> Trainer::State::validate() {
  if (validation == nullptr) return std::nullopt;
  const Clock::time_point begin = Clock::now();
  const EvalReport report = evaluate(job.model, job.units, job.pipeline, *validation);
  validation_loss = report.loss;
  console.line(fmt::format("validation loss {:.4f}  perplexity {:.2f}  ({} tokens, {:.1f} s)",
                           report.loss, std::exp(report.loss), with_commas(report.tokens),
                           seconds_since(begin)));
  return report.loss;
}

void Trainer::State::sample() {
  if (tokenizer == nullptr) return;
  const WholeValues whole(job.units);
  if (!beside_speaker()) return;
  TextRequest request;
  request.prompt = config.metrics.sample_prompt;
  request.tokens = config.metrics.sample_tokens;
  request.seed = config.run.seed;
  request.forward = [this](const Pass& pass) {
    return decode_forward(job.model, job.pipeline, job.units.stage_ranks(), pass);
  };
  const std::string text = generate_text(job.model, *tokenizer, request);
  if (speaks()) console.line("--- sample\n" + printable(text) + "\n---");
}

void Trainer::State::introduce() {
  print_layout(config, console);
  const int threads = threads_of(config, rank.ranks_here);
  console.line(fmt::format("a step    {} x {} tokens on {} rank{} ({}) of {} thread{}",
                           config.training.global_batch, config.training.seq_len, world.size(),
                           world.size() == 1 ? "" : "s", world.backend(), threads,
                           threads == 1 ? "" : "s"));
}

// A rank that keeps more or less than its plan says would run out of memory, or train something
// else, much later.
void Trainer::State::check_books() const {
  const StateBytes planned = state_bytes_of(config, world.rank());
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

// A loss can look healthy while logits grow until generation or bf16 fails (case 136).
void Trainer::State::watch_logits(const StepReport& report) {
  const double alert = config.metrics.logit_alert;
  const double largest = std::max(report.max_logit, report.max_attention_lse);
  const bool high = alert > 0.0 && largest > alert;
  if (high && !warned && speaks()) {
    log_warning(fmt::format(
        "step {}: logits have grown to {:.0f} (head {:.0f}, attention {:.0f}), above "
        "metrics.logit_alert = {:.0f}; training.z_loss or a lower optimizer.lr holds them",
        report.step, largest, report.max_logit, report.max_attention_lse, alert));
  }
  warned = high;
}

void Trainer::State::keep_trace(StepMetrics& metrics) {
  if (metrics.report.step > config.metrics.trace_steps) return;
  trace.insert(trace.end(), metrics.report.trace.begin(), metrics.report.trace.end());
  if (metrics.report.step < config.metrics.trace_steps) return;
  std::vector<std::string> all = gather_texts(world, to_chrome_rows(trace, world.rank()));
  const std::vector<std::string> last =
      gather_texts(world, to_chrome_rows(metrics.report.trace, world.rank()));
  trace.clear();
  if (!folder) return;
  if (job.mesh.degree(Axis::kPp) > 1) add_simulated(last, all);
  write_file_atomically(folder->path() / "trace.json", to_chrome_json(all));
}

// The clock's timeline of the last traced step beside it, and what is left between them, of the
// pipeline that this rank is in.
void Trainer::State::add_simulated(const std::vector<std::string>& last,
                                   std::vector<std::string>& rows) {
  std::vector<std::vector<TraceEvent>> events;
  for (const int stages : job.mesh.group(Axis::kPp)) {
    events.push_back(from_chrome_rows(last[static_cast<std::size_t>(stages)]));
  }
  const RunTimeline run = compare(job.schedule, events);
  const TraceLabels beside{
      .begin_us = run.begin_us, .first_process = world.size(), .process = "simulated rank "};
  for (std::string& row : chrome_rows(run.simulated, beside)) rows.push_back(std::move(row));
  console.line(to_table(run));
}

void Trainer::State::save() {
  WholeWeights weights;
  for_each_whole(job.units, WholeOf::kValues,
                 [&](const ParameterInfo& info, const at::Tensor& whole) {
                   if (speaks()) weights.emplace(info.name, whole.clone());
                 });
  if (!speaks()) return;
  save_weights(job.model, weights, folder->weights());
  if (tokenizer != nullptr) tokenizer->save(folder->weights());
}

void Trainer::State::tell(StepMetrics& metrics, bool last) {
  keep_trace(metrics);
  watch_logits(metrics.report);
  log_step(metrics, last);
}

// A line a step; the validation's loss belongs to the last one.
void Trainer::State::write(const std::vector<StepMetrics>& steps, std::optional<double> loss) {
  for (const StepMetrics& step : steps) {
    nlohmann::ordered_json line = to_json(step);
    if (loss && &step == &steps.back()) line["validation_loss"] = *loss;
    folder->add_metrics(line);
  }
}

void Trainer::State::finish(const StepMetrics& metrics, int signal) {
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

Trainer::Trainer(RunConfig config, Rank& rank, Console& console)
    : state_(std::make_unique<State>(std::move(config), rank, console)) {}
Trainer::~Trainer() = default;

int Trainer::run() {
  State& s = *state_;
  s.check_books();
  if (s.speaks()) s.folder.emplace(s.config);
  s.introduce();
  const StopSignals signals;
  const std::int64_t steps = s.config.training.steps;
  StepMetrics metrics;
  bool stopped = false;
  for (std::int64_t number = 1; number <= steps && !stopped; ++number) {
    s.run_step(number);
    if (!s.meets_after(number)) continue;
    std::vector<StepMetrics> met = s.meet();
    if (due(number, s.config.debug.check_replicas)) {
      check_replicas(s.job.units, *s.job.optimizer, s.job.mesh, s.world);
    }
    stopped = any_rank(StopSignals::received() != 0, s.world);
    const bool last = number == steps || stopped;
    for (StepMetrics& step : met) s.tell(step, last && step.report.step == number);
    metrics = met.back();
    std::optional<double> loss;
    if (due(number, s.config.metrics.eval_every) || last) loss = s.validate();
    if (s.folder) s.write(met, loss);
    if (!last && due(number, s.config.metrics.sample_every)) s.sample();
  }
  s.save();
  if (s.folder) s.finish(metrics, stopped ? StopSignals::received() : 0);
  if (!stopped) s.sample();
  return 0;
}

}  // namespace quatrain::apps
