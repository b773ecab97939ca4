// SPDX-License-Identifier: Apache-2.0
// See trainer.h.
#include "apps/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "apps/agreed.h"
#include "apps/dry_run.h"
#include "apps/guard.h"
#include "apps/job.h"
#include "apps/metrics.h"
#include "apps/rank_metrics.h"
#include "apps/resume.h"
#include "apps/run_folder.h"
#include "apps/run_place.h"
#include "apps/saver.h"
#include "apps/signals.h"
#include "apps/text.h"
#include "apps/untold_steps.h"
#include "apps/wishes.h"
#include "quatrain/base/file.h"
#include "quatrain/base/log.h"
#include "quatrain/base/text.h"
#include "quatrain/cost/walk.h"
#include "quatrain/engine/decode.h"
#include "quatrain/engine/job.h"
#include "quatrain/engine/rank_thread.h"
#include "quatrain/engine/replica_check.h"
#include "quatrain/engine/run_timeline.h"
#include "quatrain/engine/saved_state.h"
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
        training(make_train_loader(train_sources(), loader_options_here())),
        resume_point(find_resume_point(config, files, world)),
        place(config),
        job(job_options(), *training, world) {
    if (resume_point) take_up_run();
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
  std::vector<DataSource> train_sources() {
    std::vector<DataSource> sources = sources_here(config.data.train);
    nlohmann::json entry = nlohmann::json::array();
    for (const DataSource& source : sources) {
      entry.push_back({source.file->path().string(), source.file->num_tokens()});
    }
    data_entry = entry.dump();
    return sources;
  }
  // Values that a checkpoint sets need not be drawn.
  RankJobOptions job_options() {
    RankJobOptions options = rank_job_options(config);
    options.executor.on_gradients = [this] { saver->before_update(); };
    if (resume_point) options.fill = [](Model&, ZeroUnits&, Communicator&) {};
    return options;
  }
  LoaderOptions loader_options_here() const {
    const Mesh here = mesh();
    const AxisSet data = AxisSet(Axis::kDpReplicate) | Axis::kDpShard;
    return loader_options(config, tokenizer.get(), here.coord(data), here.degree(data));
  }
  bool speaks() const { return world.rank() == 0; }
  // Holds the model together with the rank that speaks: all do where data ranks share experts.
  bool beside_speaker() const {
    if (job.mesh.degree({Axis::kEp, Axis::kEtp}) > job.mesh.degree(Axis::kTp)) return true;
    return job.mesh.group(AxisSet(Axis::kPp) | Axis::kTp).front() == 0;
  }
  void take_up_run();
  TrainingState state_at(std::int64_t number) const;
  void begin();
  void run_step(std::int64_t number);
  bool meets_after(std::int64_t number) const;
  std::vector<StepMetrics> meet();
  int train();
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
  void save_weights();
  int stop(std::int64_t number);
  int finish(const std::optional<StepMetrics>& last);

  RunConfig config;
  Rank& rank;
  Communicator& world;
  Console& console;
  MemoryOwner memory;
  RankThread prologue;
  PosixFileSystem files;
  std::unique_ptr<Tokenizer> tokenizer;
  std::string data_entry;
  std::unique_ptr<DataLoader> training;
  std::unique_ptr<DataLoader> validation;
  std::optional<ResumePoint> resume_point;
  RunPlace place;
  RankJob job;
  std::optional<RunFolder> folder;  // of rank 0
  std::optional<RunSaver> saver;
  UntoldSteps untold;
  std::vector<TraceEvent> trace;  // of the first metrics.trace_steps steps
  double total_seconds = 0.0;
  bool warned = false;  // of large logits, in the last step
  std::optional<double> validation_loss;
};

// From the checkpoint: values, optimizer, the place in the data, and what its run had seen.
void Trainer::State::take_up_run() {
  place.take_up(resume(*resume_point, config, data_entry, files, job, world));
  const TrainingState& start = place.start();
  agreed([&] { training->continue_from(start.data_cursor, start.step + 1); });
}

TrainingState Trainer::State::state_at(std::int64_t number) const {
  TrainingState state = place.state_at(number, training->cursor(number + 1), data_entry);
  if (config.training.router_balance == "global_batch") keep_router_loads(state, job.executor);
  return state;
}

// This rank's part of the step's numbers.
void Trainer::State::run_step(std::int64_t number) {
  memory.reset_peak();
  const CommCounts before = rank.counts;
  StepMetrics metrics;
  const double factor = place.lr_factor_at(number);
  const Clock::time_point begin = Clock::now();
  metrics.report = job.run(number, factor);
  metrics.seconds = seconds_since(begin);
  metrics.lr = config.optimizer.lr * factor;
  metrics.step_tokens = place.step_tokens();
  metrics.tokens_seen = place.tokens_at(number);
  metrics.peak = memory.peak();
  metrics.exposed_comm_ms = metrics.report.exposed_comm_ms;
  metrics.bubble_ms = metrics.report.bubble_ms;
  metrics.model_flops = model_flops(config.model, config.training.global_batch,
                                    config.training.seq_len, config.training.trainable)
                            .value;
  total_seconds += metrics.seconds;
  untold.add(metrics, rank.counts.since(before));
  untold.settle(job.executor.settled());
}

// Ranks meet after every step, or where post-validation lets them run on, when something is due.
bool Trainer::State::meets_after(std::int64_t number) const {
  return !config.parallel.post_validation || number == config.training.steps ||
         number <= config.metrics.trace_steps || due(number, config.metrics.log_every) ||
         due(number, config.metrics.eval_every) || due(number, config.metrics.sample_every) ||
         due(number, config.checkpoint.interval) || due(number, config.debug.check_replicas);
}

// The steps since ranks last met, as the job's.
std::vector<StepMetrics> Trainer::State::meet() {
  job.executor.settle();
  untold.settle(job.executor.settled());
  std::vector<StepMetrics> steps = untold.tell(world);
  if (steps.front().report.step == 1) place.first_loss = steps.front().report.loss;
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
  const auto left = static_cast<double>(config.training.steps - number);
  const double a_step = total_seconds / static_cast<double>(number - place.start().step);
  const std::string text = console_line(metrics, config.training.steps, left * a_step);
  if (number == place.start().step + 1 || last || number % config.metrics.log_every == 0) {
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

void Trainer::State::save_weights() {
  WholeWeights weights;
  for_each_whole(job.units, WholeOf::kValues,
                 [&](const ParameterInfo& info, const at::Tensor& whole) {
                   if (speaks()) weights.emplace(info.name, whole.clone());
                 });
  if (!speaks()) return;
  quatrain::save_weights(job.model, weights, folder->weights());
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

void Trainer::State::begin() {
  check_books();
  if (speaks()) {
    const bool goes_on = resume_point && resume_point->same_run;
    folder.emplace(config, goes_on ? std::optional(place.start().step) : std::nullopt);
  }
  introduce();
  if (resume_point) {
    console.line(fmt::format("resumed   step {}, {} tokens, from {}\n{}", place.start().step,
                             with_commas(place.start().tokens), resume_point->path.string(),
                             changes_since(place.start(), config)));
  } else if (config.checkpoint.resume == "if_present") {
    console.line("no checkpoint is there: training begins at step 1");
  }
  saver.emplace(config, job, world, console);
}

// The steps that are left; the exit code.
int Trainer::State::train() {
  const std::int64_t steps = config.training.steps;
  std::optional<StepMetrics> last;
  for (std::int64_t number = place.start().step + 1; number <= steps; ++number) {
    run_step(number);
    if (!meets_after(number)) continue;
    std::vector<StepMetrics> met = meet();
    if (due(number, config.debug.check_replicas)) {
      check_replicas(job.units, *job.optimizer, job.mesh, world);
    }
    saver->poll();
    const Wishes wishes = agreed_wishes(config.run.folder, world);
    const bool ends = number == steps;
    const bool stops = wishes.stop && !ends;
    for (StepMetrics& step : met) tell(step, (ends || stops) && step.report.step == number);
    std::optional<double> loss;
    if ((due(number, config.metrics.eval_every) && !stops) || ends) loss = validate();
    if (folder) write(met, loss);
    last = met.back();
    if (stops) return stop(number);
    if (wishes.save || due(number, config.checkpoint.interval)) saver->save(state_at(number));
    if (!ends && due(number, config.metrics.sample_every)) sample();
  }
  return finish(last);
}

int Trainer::State::stop(std::int64_t number) {
  saver->finish(state_at(number));
  const int signal = StopSignals::received();
  console.line(fmt::format("stopped {} after step {}: run again with checkpoint.resume=if_present",
                           signal != 0 ? fmt::format("by signal {}", signal) : "as asked", number));
  return kPreempted;
}

// Weights for others before the checkpoint, which may not find room.
int Trainer::State::finish(const std::optional<StepMetrics>& last) {
  save_weights();
  if (last) saver->finish(state_at(config.training.steps));
  if (!folder) return sample(), kDone;
  nlohmann::ordered_json document;
  if (last) {
    const auto tokens = static_cast<double>(last->tokens_seen - place.start().tokens);
    console.line(fmt::format("loss {:.4f} -> {:.4f}  {} tokens in {}  {} tok/s  weights in {}",
                             place.first_loss, last->report.loss, with_commas(last->tokens_seen),
                             human_duration(total_seconds),
                             with_commas(static_cast<std::int64_t>(tokens / total_seconds)),
                             folder->weights().string()));
    document = to_json(*last);
  } else {
    console.line(fmt::format("nothing is left to train: step {} of {}  weights in {}",
                             place.start().step, config.training.steps,
                             folder->weights().string()));
    document["step"] = place.start().step;
  }
  document["first_loss"] = place.first_loss;
  if (validation_loss) document["validation_loss"] = *validation_loss;
  document["folder"] = folder->path().string();
  console.document(document);
  sample();
  return kDone;
}

Trainer::Trainer(RunConfig config, Rank& rank, Console& console)
    : state_(std::make_unique<State>(std::move(config), rank, console)) {}
Trainer::~Trainer() = default;

int Trainer::run() {
  state_->begin();
  const StopSignals signals;
  return state_->train();
}

}  // namespace quatrain::apps
