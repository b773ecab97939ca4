// SPDX-License-Identifier: Apache-2.0
// Steps of tiny models: what accumulation, schedules, threads and recomputation may change
// (nothing, or rounding), and what the executor refuses.
#include "quatrain/engine/executor.h"

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "quatrain/base/error.h"
#include "quatrain/engine/engine_test_support.h"
#include "quatrain/engine/rank_thread.h"

namespace quatrain {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class ExecutorTest : public ::testing::Test {
 protected:
  RankThread prologue_{{.threads = 1}};
};

void expect_same_bits(Job& a, Job& b) {
  for (std::size_t u = 0; u < a.units().size(); ++u) {
    EXPECT_TRUE(at::equal(a.units()[u]->flat_grad(), b.units()[u]->flat_grad())) << u;
    EXPECT_TRUE(at::equal(a.units()[u]->flat_value(), b.units()[u]->flat_value())) << u;
  }
}
void expect_close(Job& a, Job& b, double tolerance) {
  const auto want = b.grads();
  const auto got = a.grads();
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE(relative_error(got[i], want[i]), tolerance) << i;
  }
}

TEST_F(ExecutorTest, LossFalls) {
  for (const ModelSpec& spec : tiny_models()) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      Job job({.spec = spec,
               .build = {.dtype = dtype},
               .data = {.same_every_step = true},
               .optimizer = {.name = "adamw", .lr = 0.01}});
      const double first = job.step(1).loss;
      EXPECT_NEAR(first, std::log(61.0), 0.8) << spec.name;
      double last = first;
      for (std::int64_t step = 2; step <= 40; ++step) last = job.step(step).loss;
      EXPECT_LT(last, 0.3 * first) << spec.name;
    }
  }
}

// The same global batch, with unequal numbers of trained tokens in its sequences, in 1, 2 or 4
// micro-batches; with clipping off and SGD a wrong factor would show in the weights.
TEST_F(ExecutorTest, case_001_case_002_AccumulationChangesRoundingOnly) {
  for (const ModelSpec& spec : tiny_models()) {
    Job whole({.spec = spec, .data = {.microbatch_size = 4}});
    const StepReport want = whole.step();
    EXPECT_EQ(want.trained_tokens, 1 + 4 + 7 + 1);
    for (std::int64_t size : {2, 1}) {
      Job parts({.spec = spec, .data = {.microbatch_size = size}});
      const StepReport got = parts.step();
      EXPECT_NEAR(got.loss / want.loss, 1.0, 1e-12) << spec.name;
      EXPECT_NEAR(got.grad_norm / want.grad_norm, 1.0, 1e-12) << spec.name;
      expect_close(parts, whole, 1e-12);
    }
  }
}

// Micro-batches of 1 and 3 trained tokens: (1 a + 3 b) / 4, not (a + b) / 2.
TEST_F(ExecutorTest, case_002_LossIsTheMeanOverTokens) {
  const auto loss_of = [](std::function<std::int64_t(std::int64_t)> trained) {
    Job job({.data = {.global_batch = 2, .trained = std::move(trained)}});
    return job.step().loss;
  };
  const double a = loss_of([](std::int64_t s) { return s == 0 ? 1 : 0; });
  const double b = loss_of([](std::int64_t s) { return s == 0 ? 0 : 3; });
  const double both = loss_of([](std::int64_t s) { return s == 0 ? 1 : 3; });
  EXPECT_GT(std::abs(a - b), 1e-3);
  EXPECT_NEAR(both, (a + 3.0 * b) / 4.0, 1e-12);
}

TEST_F(ExecutorTest, case_022_EveryMicrobatchCounts) {
  const auto first_only = [](std::int64_t s) { return s == 0 ? 5 : 0; };
  Job parts({.data = {.microbatch_size = 1, .trained = first_only}});
  Job whole({.data = {.microbatch_size = 4, .trained = first_only}});
  EXPECT_GT(parts.step().grad_norm, 0.0);
  (void)whole.step();
  expect_close(parts, whole, 1e-12);
}

// Forward and backward of a micro-batch add to the gradient in its own order whatever lies between,
// but for a tied table, to which head and embedding add by turns.
TEST_F(ExecutorTest, SchedulesOfOneStageGiveTheSameBits) {
  for (const ModelSpec& spec : tiny_models()) {
    Job one({.spec = spec});
    const Schedule schedule = one.schedule("1f1b");
    const StepReport want = one.step(1, schedule);
    const std::vector<Schedule> others = {one.schedule("gpipe"), split_backward(schedule),
                                          split_backward(one.schedule("gpipe"))};
    for (const Schedule& other : others) {
      Job two({.spec = spec});
      const StepReport got = two.step(1, other);
      EXPECT_EQ(got.loss, want.loss);
      EXPECT_EQ(got.max_logit, want.max_logit);
      EXPECT_EQ(got.flops.flops, want.flops.flops);
      if (spec.tied) {
        expect_close(two, one, 1e-12);
      } else {
        EXPECT_EQ(got.grad_norm, want.grad_norm);
        expect_same_bits(two, one);
      }
    }
  }
}

TEST_F(ExecutorTest, RecomputationGivesTheSameBits) {
  for (ModelSpec spec : tiny_models()) {
    for (const bool dropped : {false, true}) {
      if (dropped) spec = with_dropout(spec);
      Job keep({.spec = spec, .data = {.microbatch_size = 2}});
      const StepReport want = keep.step();
      for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
        Job again({.spec = spec,
                   .build = {.dtype = at::kDouble, .recompute = recompute},
                   .data = {.microbatch_size = 2}});
        const StepReport got = again.step();
        EXPECT_EQ(got.loss, want.loss) << spec.name;
        EXPECT_EQ(got.grad_norm, want.grad_norm) << spec.name;
        expect_same_bits(again, keep);
      }
    }
  }
}

TEST_F(ExecutorTest, DropoutIsAFunctionOfTheSample) {
  const ModelSpec spec = with_dropout(tiny_gpt2());
  Job whole({.spec = spec, .data = {.microbatch_size = 4}});
  Job parts({.spec = spec, .data = {.microbatch_size = 1}});
  Job none({.spec = tiny_gpt2(), .data = {.microbatch_size = 4}});
  const double loss = whole.step().loss;
  EXPECT_NEAR(parts.step().loss / loss, 1.0, 1e-12);
  EXPECT_GT(std::abs(none.step().loss - loss), 1e-6);
  expect_close(parts, whole, 1e-12);
}

TEST_F(ExecutorTest, TheSameRunTwiceHasTheSameBits) {
  const auto make = [] {
    return Job({.spec = tiny_qwen3(),
                .build = {.dtype = at::kFloat},
                .optimizer = {.name = "adamw", .lr = 0.01}});
  };
  Job a = make();
  Job b = make();
  for (std::int64_t step = 1; step <= 3; ++step) {
    const StepReport x = a.step(step);
    const StepReport y = b.step(step);
    EXPECT_EQ(x.loss, y.loss);
    EXPECT_EQ(x.grad_norm, y.grad_norm);
  }
  expect_same_bits(a, b);
}

TEST_F(ExecutorTest, ThreadsChangeRoundingOnly) {
  for (const ModelSpec& spec : tiny_models()) {
    Job one({.spec = spec, .data = {.seq = 24, .microbatch_size = 4}});
    const StepReport want = one.step();
    for (const int threads : {2, 4}) {
      at::set_num_threads(threads);
      Job more({.spec = spec, .data = {.seq = 24, .microbatch_size = 4}});
      const StepReport got = more.step();
      at::set_num_threads(1);
      EXPECT_NEAR(got.loss / want.loss, 1.0, 1e-13);
      EXPECT_NEAR(got.grad_norm / want.grad_norm, 1.0, 1e-12);
      expect_close(more, one, 1e-12);
    }
  }
}

TEST_F(ExecutorTest, ClippingScalesTheUpdateAndNotTheReport) {
  Job::Options options;
  Job free(options);
  options.optimizer.max_norm = 0.01;
  Job clipped(options);
  const at::Tensor before = clipped.units()[1]->flat_value().clone();
  const StepReport report = clipped.step();
  EXPECT_EQ(report.grad_norm, free.step().grad_norm);
  const double scale = clip_scale(report.grad_norm, 0.01);
  EXPECT_LT(scale, 0.5);
  const at::Tensor step_free = free.units()[1]->flat_value().sub(before);
  const at::Tensor step_clipped = clipped.units()[1]->flat_value().sub(before);
  EXPECT_LE(relative_error(step_clipped, step_free.mul(scale)), 1e-10);
}

TEST_F(ExecutorTest, ZLossIsInTheGradientAndNotInTheLoss) {
  Job plain({});
  Job::Options options;
  options.z_loss = 0.1;
  Job with(options);
  EXPECT_EQ(with.step().loss, plain.step().loss);
  EXPECT_GT(relative_error(with.grads()[1], plain.grads()[1]), 1e-4);
}

TEST_F(ExecutorTest, AGradientThatIsNotFiniteIsSkippedAndReported) {
  Job job({.optimizer = {.name = "adamw"}});
  job.model.param("model.norm.weight").value[0] = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor before = job.units()[1]->flat_value().clone();
  const StepReport report = job.step();
  EXPECT_TRUE(report.skipped);
  EXPECT_FALSE(std::isfinite(report.grad_norm));
  EXPECT_EQ(job.optimizer->steps_done(), 0);
  EXPECT_TRUE(at::equal(job.units()[1]->flat_value(), before));
  job.model.param("model.norm.weight").value[0] = 1.0;
  EXPECT_FALSE(job.step(2).skipped);
  EXPECT_EQ(job.optimizer->steps_done(), 1);
}

TEST_F(ExecutorTest, AStepWithoutTrainedTokensIsSkipped) {
  Job job({.data = {.trained = [](std::int64_t) { return 0; }},
           .optimizer = {.name = "adamw", .weight_decay = 0.5}});
  const at::Tensor before = job.units()[1]->flat_value().clone();
  const StepReport report = job.step();
  EXPECT_TRUE(report.skipped);
  EXPECT_EQ(report.loss, 0.0);
  EXPECT_TRUE(at::equal(job.units()[1]->flat_value(), before));
}

TEST_F(ExecutorTest, FrozenParametersStayAndLeaveTheNorm) {
  Job::Options options;
  Job all(options);
  options.build.trainable = {"model.layers.1.*"};
  Job some(options);
  const StepReport report = some.step();
  (void)all.step();
  double sum = 0.0;
  for (ParamUnit* unit : all.units()) {
    if (unit->name() != "layers.1") continue;
    for (Param& p : unit->params()) sum += p.grad.square().sum().item<double>();
  }
  EXPECT_NEAR(report.grad_norm, std::sqrt(sum), 1e-12);
  Job start(options);
  for (std::size_t u = 0; u < some.units().size(); ++u) {
    const bool same = at::equal(some.units()[u]->flat_value(), start.units()[u]->flat_value());
    EXPECT_EQ(same, some.units()[u]->name() != "layers.1");
  }
}

TEST_F(ExecutorTest, GradientsAreReusedAndStartAtZero) {
  Job repeated({.data = {.same_every_step = true},
                .optimizer = {.name = "sgd", .lr = 0.0, .weight_decay = 0.0, .max_norm = 0.0}});
  (void)repeated.step(1);
  std::vector<at::Tensor> kept, copies;
  for (ParamUnit* unit : repeated.units()) {
    kept.push_back(unit->flat_grad());
    copies.push_back(unit->flat_grad().clone());
  }
  (void)repeated.step(2);
  for (std::size_t u = 0; u < kept.size(); ++u) {
    EXPECT_TRUE(repeated.units()[u]->flat_grad().is_alias_of(kept[u]));
    EXPECT_TRUE(at::equal(repeated.units()[u]->flat_grad(), copies[u]));
  }
}

TEST_F(ExecutorTest, TracesEveryActionInOrder) {
  Job job({.data = {.global_batch = 2}, .trace = true});
  const Schedule schedule = split_backward(job.schedule());
  const StepReport report = job.step(1, schedule);
  ASSERT_EQ(report.trace.size(), schedule.per_rank[0].size());
  double end = 0.0;
  for (std::size_t i = 0; i < report.trace.size(); ++i) {
    EXPECT_EQ(report.trace[i].action, schedule.per_rank[0][i]);
    EXPECT_GE(report.trace[i].begin_us, end);
    EXPECT_GE(report.trace[i].end_us, report.trace[i].begin_us);
    end = report.trace[i].end_us;
  }
}

Schedule row(const std::vector<std::string>& actions, int microbatches = 1) {
  Schedule schedule;
  schedule.num_microbatches = microbatches;
  schedule.rank_of_stage = {{0}};
  schedule.per_rank.emplace_back();
  for (const std::string& text : actions) schedule.per_rank[0].push_back(parse_action(text));
  return schedule;
}

TEST_F(ExecutorTest, RefusesRowsThatDoNotFit) {
  Job job({.data = {.global_batch = 1}});
  const auto run = [&](const std::vector<std::string>& actions) {
    return [&job, actions] { (void)job.step(1, row(actions)); };
  };
  EXPECT_THAT(run({"0B0"}),
              ThrowsMessage<BugError>(HasSubstr("no whole backward of layer 3 now: forward 0/4")));
  EXPECT_THAT(run({"0F0", "0W0"}), ThrowsMessage<BugError>(HasSubstr("no weight half")));
  EXPECT_THAT(run({"0F0", "0F0"}), ThrowsMessage<BugError>(HasSubstr("no forward")));
  EXPECT_THAT(run({"0F1"}), ThrowsMessage<BugError>(HasSubstr("0F1")));
  EXPECT_THAT(run({"1F0"}), ThrowsMessage<BugError>(HasSubstr("1F0")));
  EXPECT_THAT(run({"0F0", "0SEND_F0"}), ThrowsMessage<BugError>(HasSubstr("0SEND_F0")));
  EXPECT_THAT(run({"0UNSHARD"}), ThrowsMessage<BugError>(HasSubstr("0UNSHARD")));
  EXPECT_THAT(run({"0F0", "0OPTIMIZER_STEP"}),
              ThrowsMessage<BugError>(HasSubstr("weight half 0/4")));
  EXPECT_THAT(run({"0F0", "0B0"}), ThrowsMessage<BugError>(HasSubstr("OPTIMIZER_STEP")));
  EXPECT_THAT([&] { (void)job.step(1, row({}, 3)); },
              ThrowsMessage<BugError>(HasSubstr("3 micro-batches")));
  EXPECT_FALSE(job.step(1, row({"0F0", "0I0", "0W0", "0OPTIMIZER_STEP"})).skipped);
}

// A gradient of 1 and 256 of 2^-9 each: 1.5, where sums in bf16 stay at 1.
TEST_F(ExecutorTest, case_124_GradientsAccumulateWide) {
  ParameterInfo info;
  info.name = "w";
  info.shape = {1, 1};
  ParamUnit unit("unit", {info}, at::kBFloat16, at::kCPU);
  unit.allocate(true);
  AccumulatingSink sink;
  const ParamRange range{&unit, &unit.params()[0], &unit.params()[0]};
  const auto add = [&](double value) {
    const auto options = at::TensorOptions(at::kBFloat16);
    sink.outer(range, at::full({1, 1}, value, options), at::full({1, 1}, 1.0, options));
  };
  add(1.0);
  for (int i = 0; i < 256; ++i) add(0x1p-9);
  EXPECT_EQ(unit.params()[0].grad.item<double>(), 1.5);
}

// 7 sequences of unequal length: the same token-weighted loss however they are cut.
TEST_F(ExecutorTest, case_034_EvaluationCountsEverySequenceOnce) {
  Job job({.spec = tiny_qwen2()});
  SyntheticOptions options;
  options.global_batch = 7;
  options.microbatch_size = 7;
  SyntheticLoader whole(options);
  const EvalReport want = evaluate(job.model, job.zero, job.pipeline, whole, 2);
  EXPECT_EQ(want.sequences, 14);
  EXPECT_EQ(want.tokens, 2 * whole.trained_tokens(0));
  for (std::int64_t size : {1, 2, 4}) {
    options.microbatch_size = size;
    SyntheticLoader parts(options);
    const EvalReport got = evaluate(job.model, job.zero, job.pipeline, parts, 2);
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_EQ(got.sequences, want.sequences);
    EXPECT_NEAR(got.loss / want.loss, 1.0, 1e-13);
  }
}

// The loss of a training step is that of an evaluation of the same batch before the update.
TEST_F(ExecutorTest, TrainingAndEvaluationAgreeOnTheLoss) {
  Job job({.spec = tiny_gpt2()});
  SyntheticLoader same(job.options.data);
  const EvalReport evaluated = evaluate(job.model, job.zero, job.pipeline, same, 1);  // step 0
  EXPECT_NEAR(job.step(0).loss / evaluated.loss, 1.0, 1e-13);
}

}  // namespace
}  // namespace quatrain
