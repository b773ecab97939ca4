// SPDX-License-Identifier: Apache-2.0
// What the actions of a row do in training. The loss divisor is reduced before the first forward
// and applied once, in the head; sums over micro-batches are taken in their order, whatever the
// schedule's.
#include "quatrain/engine/executor.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <span>
#include <utility>

#include "quatrain/engine/pass_builder.h"
#include "quatrain/engine/row_runner.h"
#include "quatrain/engine/update.h"
#include "quatrain/kernels/check.h"
#include "quatrain/schedule/messages.h"

namespace quatrain {
namespace {

std::vector<Action> behind_last_update(const std::vector<Action>& row) {
  const auto update = std::find_if(row.rbegin(), row.rend(), [](const Action& action) {
    return action.kind == ActionKind::kOptimizerStep;
  });
  return {update.base(), row.end()};
}

void add(RouterSums& to, const RouterSums& part) {
  to.balance += part.balance;
  to.z += part.z;
  to.entropy += part.entropy;
  to.dropped += part.dropped;
  to.rows += part.rows;
  if (!part.loads_LE.defined()) return;
  to.loads_LE = to.loads_LE.defined() ? to.loads_LE.add(part.loads_LE) : part.loads_LE;
}

std::int64_t sum_over(Communicator& ranks, std::int64_t value) {
  const at::Tensor x = at::full({1}, value, at::TensorOptions(at::kLong));
  ranks.all_reduce(x, ReduceOp::kSum).wait();
  return x.item<std::int64_t>();
}

}  // namespace

struct Executor::Impl final : StageWork {
  Impl(const Parts& parts, const ExecutorOptions& opts)
      : model(parts.model),
        units(parts.units),
        pipeline(parts.pipeline),
        data(parts.data),
        options(opts),
        update(units, parts.optimizer,
               {.max_norm = opts.max_norm,
                .post_validation = opts.post_validation,
                .router_z_loss = opts.router_z_loss,
                .router_bias_rate = opts.router_bias_rate}),
        stages(model, options.on_output, options.on_pass) {
    parts.world.barrier().wait();  // so that the traces of all ranks begin at one time
    trace = TraceRecorder();
  }

  void check(const Schedule& schedule) const;
  void begin(int num_microbatches, std::int64_t step);
  void run_until_settled(RowRunner& runner, std::span<const Action> ahead,
                         const Schedule& schedule);
  bool settle_last();
  void finish();

  void run(const Action& action) override;
  void execute(const Action& action);
  at::Tensor slot(const StageEnd& end) override { return stages.slot(end); }
  void give(const StageEnd& end, at::Tensor x) override { stages.give(end, std::move(x)); }
  at::Tensor take(const StageEnd& end) override { return stages.take(end); }

  void compute(const Action& action);
  void step_optimizer();
  LossSums seen() const;

  Model& model;
  ZeroUnits& units;
  Pipeline& pipeline;
  DataLoader& data;
  ExecutorOptions options;
  Update update;
  AccumulatingSink sink;
  TraceRecorder trace;
  ModelStages stages;

  // Of the step that runs.
  StepReport report;
  double lr_factor = 1.0;
  std::size_t stepped = 0;  // stages whose OPTIMIZER_STEP has come

  // Of the one before.
  StepReport last;                    // complete, but while its update is pending
  StepReport settled;                 // the last that is
  std::vector<Action> behind_update;  // of its row: gathers of what was updated
};

Executor::Executor(const Parts& parts, const ExecutorOptions& options)
    : impl_(std::make_unique<Impl>(parts, options)) {}
Executor::~Executor() = default;

void Executor::Impl::check(const Schedule& schedule) const {
  CHECK(schedule.rank_of_stage.size() == 1 &&
            schedule.rank_of_stage[0] == pipeline.rank_of_stage() &&
            schedule.num_stages == pipeline.num_stages(),
        "a schedule of {} stages, placed otherwise than the model's {}", schedule.num_stages,
        pipeline.num_stages());
  CHECK(schedule.num_microbatches == data.num_microbatches(),
        "the schedule has {} micro-batches, the data {}", schedule.num_microbatches,
        data.num_microbatches());
}

void Executor::Impl::begin(int num_microbatches, std::int64_t step) {
  report = StepReport{};
  report.step = step;
  report.trained_tokens = sum_over(units.readers(), data.trained_tokens(step));
  stepped = 0;
  const double scale =
      report.trained_tokens > 0 ? 1.0 / static_cast<double>(report.trained_tokens) : 0.0;
  const StepContext context{.step = step,
                            .loss_scale = scale,
                            .z_loss = options.z_loss,
                            .seed = options.seed,
                            .grads = &sink,
                            .router_z_loss = options.router_z_loss,
                            .router_loads_LE = update.router_loads()};
  std::vector<Pass> passes;
  for (int m = 0; m < num_microbatches; ++m) {
    passes.push_back(training_pass(data.microbatch(step, m), context, m, model.context_parallel()));
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

LossSums Executor::Impl::seen() const {
  LossSums all;
  stages.for_each([&](const Microbatch& microbatch) {
    CHECK(microbatch.done(), "step {}: OPTIMIZER_STEP while a micro-batch is at \"{}\"",
          report.step, microbatch.progress());
    all.loss += microbatch.sums().loss;
    all.max_logit = std::max(all.max_logit, microbatch.sums().max_logit);
    all.max_attention_lse = std::max(all.max_attention_lse, microbatch.sums().max_attention_lse);
    add(all.router, microbatch.sums().router);
  });
  return all;
}

// Of all stages at once, when the last one's turn has come: one norm holds for all.
void Executor::Impl::step_optimizer() {
  CHECK(stepped < model.stages().size(), "step {}: one OPTIMIZER_STEP too many", report.step);
  if (++stepped < model.stages().size()) return;
  units.finish_grads();
  if (options.on_gradients) options.on_gradients();
  update.run(report, options.lr * lr_factor, seen());
}

void Executor::Impl::run(const Action& action) {
  CHECK(action.overlap == nullptr, "step {}: {} overlaps two micro-batches, which one rank cannot",
        report.step, to_string(action));
  units.tensor_listener() = [&](const CommTiming& timing) { trace.add(action, timing); };
  execute(action);
  if (options.after_action) options.after_action(action);
}

void Executor::Impl::execute(const Action& action) {
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
      step_optimizer();
      return trace.add(action, TraceLane::kCompute, begin_us);
    }
    default:
      CHECK(false, "step {}: {} is nothing that a stage does", report.step, to_string(action));
  }
}

// True where an update did not stand: it does now, gathered where ranks gather what was updated.
bool Executor::Impl::settle_last() {
  const bool stands = update.settle(last);
  settled = last;
  if (stands) return false;
  units.forget_gathers();
  update.mend();
  for (const Action& action : behind_update) units.execute(action);
  units.end_step();
  return true;
}

// Runs a row's begin. Where it rests on an update that does not stand, all ranks forget it and run
// it again.
void Executor::Impl::run_until_settled(RowRunner& runner, std::span<const Action> ahead,
                                       const Schedule& schedule) {
  runner.run(ahead);
  if (!settle_last()) return;
  runner.start_again(received_ahead(schedule, pipeline.rank()));
  begin(schedule.num_microbatches, report.step);
  runner.run(ahead);
}

void Executor::Impl::finish() {
  CHECK(stepped == model.stages().size(), "step {}: the row ends without an OPTIMIZER_STEP",
        report.step);
  units.end_step();
  units.tensor_listener() = nullptr;
  stages.clear();
  std::vector<TraceEvent> events = trace.take();
  report.exposed_comm_ms = exposed_comm_ms(events);
  report.bubble_ms = bubble_ms(events);
  if (options.trace) report.trace = std::move(events);
  last = report;
  if (!update.pending()) settled = report;
}

StepReport Executor::run(const Schedule& schedule, std::int64_t step, double lr_factor) {
  Impl& impl = *impl_;
  impl.check(schedule);
  impl.begin(schedule.num_microbatches, step);
  impl.lr_factor = lr_factor;
  {
    const ScopedFlopCounter counter(&impl.report.flops);
    const auto& row = schedule.per_rank.at(static_cast<std::size_t>(impl.pipeline.rank()));
    RowRunner runner(impl.pipeline, impl, impl.trace);
    std::span<const Action> rest(row);
    if (impl.update.pending()) {
      const std::span<const Action> ahead = ahead_of_validation(row);
      impl.run_until_settled(runner, ahead, schedule);
      rest = rest.subspan(ahead.size());
    }
    runner.run(rest);
    runner.finish();
    impl.behind_update = behind_last_update(row);
  }
  impl.finish();
  return std::move(impl.report);
}

void Executor::settle() {
  if (impl_->update.pending()) impl_->settle_last();
}

const at::Tensor& Executor::router_loads() const { return impl_->update.router_loads(); }
void Executor::set_router_loads(at::Tensor loads_LE) {
  impl_->update.router_loads() = std::move(loads_LE);
}

const StepReport& Executor::settled() const { return impl_->settled; }

}  // namespace quatrain
