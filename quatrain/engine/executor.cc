// SPDX-License-Identifier: Apache-2.0
// What the actions of a row do in training. The loss divisor is reduced before the first forward
// and applied once, in the head; sums over micro-batches are taken in their order, whatever the
// schedule's.
#include "quatrain/engine/executor.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "quatrain/engine/model_stages.h"
#include "quatrain/engine/pass_builder.h"
#include "quatrain/engine/row_runner.h"
#include "quatrain/kernels/check.h"

namespace quatrain {
namespace {

std::unique_ptr<Communicator> control_group(Communicator& world) {
  std::vector<int> all(static_cast<std::size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  return world.group(all, "control");
}

template <class Scalar>
Scalar reduce(Communicator& ranks, Scalar value, ReduceOp op) {
  constexpr bool whole = std::is_integral_v<Scalar>;
  const at::Tensor x = at::full({1}, value, at::TensorOptions(whole ? at::kLong : at::kDouble));
  ranks.all_reduce(x, op).wait();
  return x.item<Scalar>();
}

// Of the whole model, sorted: the order in which norms are summed, whatever a rank holds.
std::vector<std::string> sorted_names(const ModelSpec& spec) {
  std::vector<std::string> names;
  for (const ParameterInfo& info : parameters(spec)) names.push_back(info.name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

struct Executor::Impl final : StageWork {
  Impl(const Parts& parts, const ExecutorOptions& opts)
      : model(parts.model),
        units(parts.units),
        pipeline(parts.pipeline),
        optimizer(parts.optimizer),
        data(parts.data),
        control(control_group(parts.world)),
        options(opts),
        names(sorted_names(model.spec())),
        stages(model, options.on_output) {}

  void begin(const Schedule& schedule, std::int64_t step);
  void finish();

  void run(const Action& action) override;
  at::Tensor slot(const StageEnd& end) override { return stages.slot(end); }
  void give(const StageEnd& end, at::Tensor x) override { stages.give(end, std::move(x)); }
  at::Tensor take(const StageEnd& end) override { return stages.take(end); }

  void compute(const Action& action);
  void update();
  void sum_losses();

  Model& model;
  ZeroUnits& units;
  Pipeline& pipeline;
  Optimizer& optimizer;
  DataLoader& data;
  std::unique_ptr<Communicator> control;  // every rank of the job
  ExecutorOptions options;
  std::vector<std::string> names;
  AccumulatingSink sink;
  TraceRecorder trace;
  ModelStages stages;

  // Of the step that runs.
  StepReport report;
  double lr_factor = 1.0;
  std::size_t stepped = 0;  // stages whose OPTIMIZER_STEP has come
};

Executor::Executor(const Parts& parts, const ExecutorOptions& options)
    : impl_(std::make_unique<Impl>(parts, options)) {}
Executor::~Executor() = default;

void Executor::Impl::begin(const Schedule& schedule, std::int64_t step) {
  CHECK(schedule.rank_of_stage.size() == 1 &&
            schedule.rank_of_stage[0] == pipeline.rank_of_stage() &&
            schedule.num_stages == pipeline.num_stages(),
        "a schedule of {} stages, placed otherwise than the model's {}", schedule.num_stages,
        pipeline.num_stages());
  CHECK(schedule.num_microbatches == data.num_microbatches(),
        "the schedule has {} micro-batches, the data {}", schedule.num_microbatches,
        data.num_microbatches());
  report = StepReport{};
  report.step = step;
  report.trained_tokens = reduce(units.readers(), data.trained_tokens(step), ReduceOp::kSum);
  stepped = 0;
  const double scale =
      report.trained_tokens > 0 ? 1.0 / static_cast<double>(report.trained_tokens) : 0.0;
  const StepContext context{step, scale, options.z_loss, options.seed, &sink};
  std::vector<Pass> passes;
  for (int m = 0; m < schedule.num_microbatches; ++m) {
    passes.push_back(training_pass(data.microbatch(step, m), context, m));
  }
  stages.begin(std::move(passes));
  units.begin_step(&trace);
}

void Executor::Impl::compute(const Action& action) {
  units.ready_values(action);
  units.ready_grads(action);
  const double begin_us = trace.now_us();
  stages.compute(action);
  trace.add(action, TraceLane::kCompute, begin_us);
}

void Executor::Impl::sum_losses() {
  stages.for_each([&](const Microbatch& microbatch) {
    CHECK(microbatch.done(), "step {}: OPTIMIZER_STEP while a micro-batch is at \"{}\"",
          report.step, microbatch.progress());
    report.loss += microbatch.sums().loss;
    report.max_logit = std::max(report.max_logit, microbatch.sums().max_logit);
    report.max_attention_lse =
        std::max(report.max_attention_lse, microbatch.sums().max_attention_lse);
  });
  report.loss = reduce(units.readers_of_all_stages(), report.loss, ReduceOp::kSum);
  if (report.trained_tokens > 0) report.loss /= static_cast<double>(report.trained_tokens);
  report.max_logit = reduce(*control, report.max_logit, ReduceOp::kMax);
  report.max_attention_lse = reduce(*control, report.max_attention_lse, ReduceOp::kMax);
}

// Of all stages at once, when the last one's turn has come: one norm holds for all.
void Executor::Impl::update() {
  CHECK(stepped < model.stages().size(), "step {}: one OPTIMIZER_STEP too many", report.step);
  if (++stepped < model.stages().size()) return;
  units.finish_grads();
  sum_losses();
  if (options.on_gradients) options.on_gradients();
  report.grad_norm = global_grad_norm(units.shards(), units.holders(), names);
  report.skipped = report.trained_tokens == 0 || !std::isfinite(report.grad_norm);
  if (report.skipped) return;
  optimizer.step(options.lr * lr_factor, clip_scale(report.grad_norm, options.max_norm));
}

void Executor::Impl::run(const Action& action) {
  CHECK(action.overlap == nullptr, "step {}: {} overlaps two micro-batches, which one rank cannot",
        report.step, to_string(action));
  units.tensor_listener() = [&](const CommTiming& timing) { trace.add(action, timing); };
  switch (action.kind) {
    case ActionKind::kForward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
    case ActionKind::kBackward:
      return compute(action);
    case ActionKind::kUnshard:
    case ActionKind::kReshard:
    case ActionKind::kReduceGrad:
      return units.execute(action);
    case ActionKind::kReduceTied:
      CHECK(pipeline.tied() != nullptr, "step {}: {} where there is one copy", report.step,
            to_string(action));
      return units.reduce_tied(action, *pipeline.tied());
    case ActionKind::kOptimizerStep: {
      const double begin_us = trace.now_us();
      update();
      return trace.add(action, TraceLane::kCompute, begin_us);
    }
    default:
      CHECK(false, "step {}: {} is nothing that a stage does", report.step, to_string(action));
  }
}

void Executor::Impl::finish() {
  CHECK(stepped == model.stages().size(), "step {}: the row ends without an OPTIMIZER_STEP",
        report.step);
  units.end_step();
  units.tensor_listener() = nullptr;
  stages.clear();
  std::vector<TraceEvent> events = trace.take();
  report.exposed_comm_ms = exposed_comm_ms(events);
  if (options.trace) report.trace = std::move(events);
}

StepReport Executor::run(const Schedule& schedule, std::int64_t step, double lr_factor) {
  Impl& impl = *impl_;
  impl.begin(schedule, step);
  impl.lr_factor = lr_factor;
  {
    const ScopedFlopCounter counter(&impl.report.flops);
    const auto rank = static_cast<std::size_t>(impl.pipeline.rank());
    run_row(schedule.per_rank.at(rank), impl.pipeline, impl, impl.trace);
  }
  impl.finish();
  return std::move(impl.report);
}

}  // namespace quatrain
