// SPDX-License-Identifier: Apache-2.0
// The walk over a row of actions. The loss divisor is reduced before the first forward and applied
// once, in the head; sums over micro-batches are taken in their order, whatever the schedule's.
#include "quatrain/engine/executor.h"

#include <ATen/ops/full.h>

#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "quatrain/engine/microbatch.h"
#include "quatrain/engine/pass_builder.h"
#include "quatrain/kernels/check.h"

namespace quatrain {
namespace {

std::vector<ParamUnit*> units_of(const Model& model) {
  std::vector<ParamUnit*> units;
  for (const auto& unit : model.units()) units.push_back(unit.get());
  return units;
}

std::unique_ptr<Communicator> control_group(Communicator& world) {
  std::vector<int> all(static_cast<std::size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  return world.group(all, "control");
}

}  // namespace

struct Executor::Impl {
  Impl(Model& m, Optimizer& o, DataLoader& d, Communicator& world, const ExecutorOptions& opts)
      : model(m),
        optimizer(o),
        data(d),
        control(control_group(world)),
        options(opts),
        units(units_of(m)) {}

  void begin(const Schedule& schedule, std::int64_t step);
  void execute(const Action& action, double lr_factor);
  void compute(const Action& action);
  void update(double lr_factor);
  double now_us() const;
  // Over all ranks of the job.
  template <class Scalar>
  Scalar reduce(Scalar value, ReduceOp op);

  Model& model;
  Optimizer& optimizer;
  DataLoader& data;
  std::unique_ptr<Communicator> control;  // token counts, sums of losses
  ExecutorOptions options;
  std::vector<ParamUnit*> units;
  AccumulatingSink sink;
  std::chrono::steady_clock::time_point made = std::chrono::steady_clock::now();

  // Of the step that runs.
  std::vector<std::unique_ptr<Microbatch>> microbatches;
  StepReport report;
  bool updated = false;
};

Executor::Executor(Model& model, Optimizer& optimizer, DataLoader& data, Communicator& world,
                   const ExecutorOptions& options)
    : impl_(std::make_unique<Impl>(model, optimizer, data, world, options)) {}
Executor::~Executor() = default;

double Executor::Impl::now_us() const {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - made).count();
}

template <class Scalar>
Scalar Executor::Impl::reduce(Scalar value, ReduceOp op) {
  constexpr bool whole = std::is_integral_v<Scalar>;
  const at::Tensor x = at::full({1}, value, at::TensorOptions(whole ? at::kLong : at::kDouble));
  control->all_reduce(x, op).wait();
  return x.item<Scalar>();
}

void Executor::Impl::begin(const Schedule& schedule, std::int64_t step) {
  CHECK(schedule.num_stages == 1 && schedule.per_rank.size() == 1,
        "a schedule of {} stages for a model that is one stage", schedule.num_stages);
  CHECK(schedule.num_microbatches == data.num_microbatches(),
        "the schedule has {} micro-batches, the data {}", schedule.num_microbatches,
        data.num_microbatches());
  report = StepReport{};
  report.step = step;
  report.trained_tokens = reduce(data.trained_tokens(step), ReduceOp::kSum);
  updated = false;
  const double scale =
      report.trained_tokens > 0 ? 1.0 / static_cast<double>(report.trained_tokens) : 0.0;
  const StepContext context{step, scale, options.z_loss, options.seed, &sink};
  microbatches.clear();
  for (int m = 0; m < schedule.num_microbatches; ++m) {
    microbatches.push_back(std::make_unique<Microbatch>(
        model.layers(), training_pass(data.microbatch(step, m), context, m)));
  }
  for (ParamUnit* unit : units) unit->zero_grads();
}

void Executor::Impl::compute(const Action& action) {
  const int index = action.microbatch.value_or(-1);
  CHECK(action.stage == 0 && index >= 0 && index < static_cast<int>(microbatches.size()),
        "step {}: {} names no stage and micro-batch of this rank", report.step, to_string(action));
  Microbatch& microbatch = *microbatches[static_cast<std::size_t>(index)];
  const Microbatch::State needed = action.kind == ActionKind::kForward ? Microbatch::State::kNew
                                   : action.kind == ActionKind::kBackwardWeight
                                       ? Microbatch::State::kInputDone
                                       : Microbatch::State::kForwardDone;
  CHECK(microbatch.state() == needed, "step {}: {} while the micro-batch is at \"{}\"", report.step,
        to_string(action), name(microbatch.state()));
  if (action.kind == ActionKind::kForward) microbatch.forward();
  if (action.kind == ActionKind::kBackward) microbatch.backward();
  if (action.kind == ActionKind::kBackwardInput) microbatch.backward_input();
  if (action.kind == ActionKind::kBackwardWeight) microbatch.backward_weight();
}

void Executor::Impl::update(double lr_factor) {
  CHECK(!updated, "step {}: a second OPTIMIZER_STEP", report.step);
  double loss = 0.0;
  for (const auto& microbatch : microbatches) {
    CHECK(microbatch->state() == Microbatch::State::kDone,
          "step {}: OPTIMIZER_STEP while a micro-batch is at \"{}\"", report.step,
          name(microbatch->state()));
    loss += microbatch->sums().loss;
    report.max_logit = std::max(report.max_logit, microbatch->sums().max_logit);
  }
  updated = true;
  loss = reduce(loss, ReduceOp::kSum);
  report.max_logit = reduce(report.max_logit, ReduceOp::kMax);
  report.grad_norm = global_grad_norm(units);
  report.skipped = report.trained_tokens == 0 || !std::isfinite(report.grad_norm);
  if (report.trained_tokens > 0) loss /= static_cast<double>(report.trained_tokens);
  report.loss = loss;
  if (report.skipped) return;
  optimizer.step(options.lr * lr_factor, clip_scale(report.grad_norm, options.max_norm));
}

void Executor::Impl::execute(const Action& action, double lr_factor) {
  CHECK(action.overlap == nullptr, "step {}: {} overlaps two micro-batches, which one rank cannot",
        report.step, to_string(action));
  switch (action.kind) {
    case ActionKind::kForward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
    case ActionKind::kBackward:
      return compute(action);
    case ActionKind::kOptimizerStep:
      return update(lr_factor);
    case ActionKind::kSendForward:
    case ActionKind::kRecvForward:
    case ActionKind::kSendBackward:
    case ActionKind::kRecvBackward:
    case ActionKind::kUnshard:
    case ActionKind::kReshard:
    case ActionKind::kReduceGrad:
    case ActionKind::kReduceTied:
    case ActionKind::kNormPart:
      break;
  }
  CHECK(false, "step {}: {} needs other ranks", report.step, to_string(action));
}

StepReport Executor::run(const Schedule& schedule, std::int64_t step, double lr_factor) {
  Impl& impl = *impl_;
  impl.begin(schedule, step);
  {
    const ScopedFlopCounter counter(&impl.report.flops);
    for (const Action& action : schedule.per_rank[0]) {
      const double begin_us = impl.now_us();
      impl.execute(action, lr_factor);
      if (impl.options.trace) impl.report.trace.push_back({action, begin_us, impl.now_us()});
    }
  }
  CHECK(impl.updated, "step {}: the row ends without an OPTIMIZER_STEP", step);
  impl.microbatches.clear();
  return std::move(impl.report);
}

}  // namespace quatrain
