// SPDX-License-Identifier: Apache-2.0
// The walk over a row of actions. The loss divisor is reduced before the first forward and applied
// once, in the head; sums over micro-batches are taken in their order, whatever the schedule's.
#include "quatrain/engine/executor.h"

#include <ATen/ops/full.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "quatrain/engine/pass_builder.h"
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

}  // namespace

struct Executor::Impl {
  Impl(Model& m, ZeroUnits& u, Optimizer& o, DataLoader& d, Communicator& world,
       const ExecutorOptions& opts)
      : model(m), units(u), optimizer(o), data(d), control(control_group(world)), options(opts) {}

  void begin(const Schedule& schedule, std::int64_t step);
  void execute(const Action& action, double lr_factor);
  void compute(const Action& action);
  void update(double lr_factor);
  void finish();
  Model& model;
  ZeroUnits& units;
  Optimizer& optimizer;
  DataLoader& data;
  std::unique_ptr<Communicator> control;  // every rank of the job
  ExecutorOptions options;
  AccumulatingSink sink;
  TraceRecorder trace;

  // Of the step that runs.
  std::vector<std::unique_ptr<Microbatch>> microbatches;
  StepReport report;
  bool updated = false;
};

Executor::Executor(Model& model, ZeroUnits& units, Optimizer& optimizer, DataLoader& data,
                   Communicator& world, const ExecutorOptions& options)
    : impl_(std::make_unique<Impl>(model, units, optimizer, data, world, options)) {}
Executor::~Executor() = default;

void Executor::Impl::begin(const Schedule& schedule, std::int64_t step) {
  CHECK(schedule.num_stages == 1 && schedule.per_rank.size() == 1,
        "a schedule of {} stages for a model that is one stage", schedule.num_stages);
  CHECK(schedule.num_microbatches == data.num_microbatches(),
        "the schedule has {} micro-batches, the data {}", schedule.num_microbatches,
        data.num_microbatches());
  report = StepReport{};
  report.step = step;
  report.trained_tokens = reduce(units.readers(), data.trained_tokens(step), ReduceOp::kSum);
  updated = false;
  const double scale =
      report.trained_tokens > 0 ? 1.0 / static_cast<double>(report.trained_tokens) : 0.0;
  const StepContext context{step, scale, options.z_loss, options.seed, &sink};
  microbatches.clear();
  for (int m = 0; m < schedule.num_microbatches; ++m) {
    microbatches.push_back(std::make_unique<Microbatch>(
        model.layers(), training_pass(data.microbatch(step, m), context, m), options.on_output));
  }
  units.begin_step(&trace);
}

void Executor::Impl::compute(const Action& action) {
  const int index = action.microbatch.value_or(-1);
  CHECK(action.stage == 0 && index >= 0 && index < static_cast<int>(microbatches.size()),
        "step {}: {} names no stage and micro-batch of this rank", report.step, to_string(action));
  units.ready_values(action);
  units.ready_grads(action);
  const double begin_us = trace.now_us();
  Microbatch& microbatch = *microbatches[static_cast<std::size_t>(index)];
  if (action.kind == ActionKind::kForward) microbatch.forward(action.unit);
  if (action.kind == ActionKind::kBackwardInput) microbatch.backward_input(action.unit);
  if (action.kind == ActionKind::kBackwardWeight) microbatch.backward_weight(action.unit);
  if (action.kind == ActionKind::kBackward) microbatch.backward(action.unit);
  trace.add(action, TraceLane::kCompute, begin_us);
}

void Executor::Impl::update(double lr_factor) {
  CHECK(!updated, "step {}: a second OPTIMIZER_STEP", report.step);
  double loss = 0.0;
  for (const auto& microbatch : microbatches) {
    CHECK(microbatch->done(), "step {}: OPTIMIZER_STEP while a micro-batch is at \"{}\"",
          report.step, microbatch->progress());
    loss += microbatch->sums().loss;
    report.max_logit = std::max(report.max_logit, microbatch->sums().max_logit);
    report.max_attention_lse =
        std::max(report.max_attention_lse, microbatch->sums().max_attention_lse);
  }
  updated = true;
  units.finish_grads();
  loss = reduce(units.readers(), loss, ReduceOp::kSum);
  report.max_logit = reduce(*control, report.max_logit, ReduceOp::kMax);
  report.max_attention_lse = reduce(*control, report.max_attention_lse, ReduceOp::kMax);
  if (options.on_gradients) options.on_gradients();
  report.grad_norm = global_grad_norm(units.shards(), units.holders());
  report.skipped = report.trained_tokens == 0 || !std::isfinite(report.grad_norm);
  if (report.trained_tokens > 0) loss /= static_cast<double>(report.trained_tokens);
  report.loss = loss;
  if (report.skipped) return;
  optimizer.step(options.lr * lr_factor, clip_scale(report.grad_norm, options.max_norm));
}

void Executor::Impl::execute(const Action& action, double lr_factor) {
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
    case ActionKind::kOptimizerStep: {
      const double begin_us = trace.now_us();
      update(lr_factor);
      return trace.add(action, TraceLane::kCompute, begin_us);
    }
    case ActionKind::kSendForward:
    case ActionKind::kRecvForward:
    case ActionKind::kSendBackward:
    case ActionKind::kRecvBackward:
    case ActionKind::kReduceTied:
    case ActionKind::kNormPart:
      break;
  }
  CHECK(false, "step {}: {} needs other ranks", report.step, to_string(action));
}

void Executor::Impl::finish() {
  CHECK(updated, "step {}: the row ends without an OPTIMIZER_STEP", report.step);
  units.end_step();
  units.tensor_listener() = nullptr;
  microbatches.clear();
  std::vector<TraceEvent> events = trace.take();
  report.exposed_comm_ms = exposed_comm_ms(events);
  if (options.trace) report.trace = std::move(events);
}

StepReport Executor::run(const Schedule& schedule, std::int64_t step, double lr_factor) {
  Impl& impl = *impl_;
  impl.begin(schedule, step);
  {
    const ScopedFlopCounter counter(&impl.report.flops);
    for (const Action& action : schedule.per_rank[0]) impl.execute(action, lr_factor);
  }
  impl.finish();
  return std::move(impl.report);
}

}  // namespace quatrain
