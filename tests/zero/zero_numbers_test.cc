// SPDX-License-Identifier: Apache-2.0
// What sharding must not do to the numbers: gradients lost in bf16 or between micro-batches, small
// updates rounded away, elements counted twice in the norm, decay on the wrong parameters.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <mutex>

#include "quatrain/base/rng.h"
#include "quatrain/comm/thread/thread.h"
#include "quatrain/engine/rank_thread.h"
#include "tests/zero/geometry_run.h"
#include "tests/zero/optimizers.h"

namespace quatrain {
namespace {

constexpr int kStages[] = {0, 1, 2, 3};

// Calls check(job) on every rank; what checks look at one at a time goes under `the_lock`.
std::mutex the_lock;
void on_every_rank(const Recipe& recipe, const Geometry& geometry,
                   const std::function<void(GeometryJob&)>& check) {
  SCOPED_TRACE(geometry.name());
  run_thread_ranks(geometry.ranks(), {}, [&](std::unique_ptr<Communicator> world) {
    const RankThread prologue({.threads = 1});
    GeometryJob job(recipe, geometry, *world);
    check(job);
  });
}

// The largest difference of a run's losses, relative, and of its gradients, in units of the step's
// largest element: a gradient that is zero but for rounding (of a key's bias) has no scale.
double distance(const RunResult& got, const RunResult& want) {
  double most = 0.0;
  for (std::size_t s = 0; s < want.losses.size(); ++s) {
    most = std::max(most, relative_error(got.losses[s], want.losses[s]));
    double largest = 0.0;
    double apart = 0.0;
    for (const auto& [name, grad] : want.grads[s]) {
      largest = std::max(largest, grad.abs().max().item<double>());
      apart = std::max(apart, got.grads[s].at(name).sub(grad).abs().max().item<double>());
    }
    most = std::max(most, apart / largest);
  }
  return most;
}

// Rounding to bf16 moves one rank's losses and gradients away from float32's by a distance that
// this run itself measures; four ranks may move them by no more than a quarter of it, since what
// sharding reorders is summed in float32.
TEST(ZeroNumbers, BFloat16OnFourRanksIsAsCloseAsOnOne) {
  for (const ModelSpec& spec : {tiny_gpt2(), tiny_qwen3()}) {
    Recipe recipe{.spec = spec, .dtype = Dtype::kFloat32, .optimizer = {.name = "adamw"}};
    const RunResult exact = run_on_threads(recipe, {1, 1, 0, 4});
    recipe.dtype = Dtype::kBFloat16;
    const RunResult one = run_on_threads(recipe, {1, 1, 0, 4});
    const RunResult four = run_on_threads(recipe, {1, 4, 3, 1});
    const double rounding = distance(one, exact);
    EXPECT_GT(rounding, 1e-3) << "no bf16 in sight";
    EXPECT_LT(rounding, 0.5);
    EXPECT_LE(distance(four, one), 0.25 * rounding) << spec.name;
    EXPECT_LE(distance(four, exact), 1.25 * rounding) << spec.name;
  }
}

// Eight updates of an eighth of bf16's step below 1: each vanishes when it is added to a bf16
// weight, all of them are one step of two.
TEST(ZeroNumbers, MastersHoldUpdatesSmallerThanHalfAnUlp) {
  for (const int zero : kStages) {
    Recipe recipe{.dtype = Dtype::kBFloat16, .optimizer = kSgd};
    on_every_rank(recipe, {1, 4, zero, 1}, [](GeometryJob& job) {
      for (const UnitShard& shard : job.units.shards()) {
        shard.value.fill_(1.0);
        shard.grad.fill_(1.0);
      }
      job.optimizer->allocate();  // masters are 1
      const auto values_are = [&](double want) {
        for (const auto& [name, value] : whole_weights(job.units)) {
          const std::lock_guard lock(the_lock);
          EXPECT_TRUE(value.eq(want).all().item<bool>()) << name;
        }
      };
      job.optimizer->step(0x1p-10, 1.0);
      values_are(1.0);
      for (int step = 2; step <= 8; ++step) job.optimizer->step(0x1p-10, 1.0);
      values_are(1.0 - 0x1p-7);
    });
  }
}

// Gradients of every element: `grad_of(m)` in micro-batch m, added and reduced as a step does.
void accumulate(GeometryJob& job, int microbatches, const std::function<double(int)>& grad_of) {
  job.units.begin_step(nullptr);
  for (int m = 0; m < microbatches; ++m) {
    for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackward}) {
      job.units.ready_grads({.kind = kind, .microbatch = m, .unit = {}, .overlap = nullptr});
    }
    const bool scattered = job.plan.zero_stage >= 2 && job.groups.shard->size() > 1;
    const bool reduces = scattered || m + 1 == microbatches;
    for (std::size_t u = 0; u < job.units.shards().size(); ++u) {
      job.units.shards()[u].unit->flat_grad().add_(grad_of(m));
      if (!reduces) continue;
      job.units.execute({.kind = ActionKind::kReduceGrad,
                         .microbatch = m,
                         .unit = static_cast<int>(u),
                         .overlap = nullptr});
    }
  }
  job.units.finish_grads();
}

TEST(ZeroNumbers, case_124_SmallContributionsAreNotLost) {
  const Recipe recipe{.dtype = Dtype::kBFloat16};
  for (const int zero : kStages) {
    for (const auto& [replicas, shards] : {std::pair{1, 1}, {1, 2}, {2, 1}, {2, 2}}) {
      on_every_rank(recipe, {replicas, shards, zero, 1}, [](GeometryJob& job) {
        const int ranks = job.groups.all->size();
        const bool first = job.groups.all->rank() == 0;
        accumulate(job, 1 + 256 / ranks, [&](int m) { return m > 0 ? 0x1p-9 : first ? 1.0 : 0.0; });
        for (const UnitShard& shard : job.units.shards()) {
          const std::lock_guard lock(the_lock);
          EXPECT_EQ(shard.grad.scalar_type(), at::kFloat);
          EXPECT_TRUE(shard.grad.eq(1.5).all().item<bool>()) << shard.unit->name();
        }
      });
    }
  }
}

// Gradients are summed in float32 whatever is computed in, and that is what the wire carries
// (ZeroBooks.BytesOnTheWireAreTheCost). In bf16 a sum of 64 would be rounded once, not 63 times.
TEST(ZeroNumbers, case_125_SixtyFourRanksOfRandomGradients) {
  constexpr int kRanks = 64;
  constexpr std::int64_t kEach = 16;
  std::vector<at::Tensor> parts;
  at::Tensor exact = at::zeros({kRanks * kEach}, at::kDouble);
  for (int r = 0; r < kRanks; ++r) {
    const RandomStream stream(3, static_cast<std::uint64_t>(r));
    at::Tensor part = at::empty({kRanks * kEach}, at::kDouble);
    for (std::int64_t i = 0; i < part.numel(); ++i) {
      part[i] = stream.uniform(static_cast<std::uint64_t>(i)) - 0.5;
    }
    parts.push_back(part.to(at::kBFloat16));  // what every dtype represents
    exact.add_(parts.back().to(at::kDouble));
  }
  const auto error_in = [&](at::ScalarType dtype) {
    at::Tensor sum = at::empty({kRanks * kEach}, dtype);
    run_thread_ranks(kRanks, {}, [&](std::unique_ptr<Communicator> world) {
      const at::Tensor own = sum.narrow(0, world->rank() * kEach, kEach);
      const at::Tensor part = parts[static_cast<std::size_t>(world->rank())].to(dtype);
      reduce_scatter(*world, own, part, ReduceOp::kSum).wait();
    });
    const double error = relative_error(sum, exact);
    RecordProperty(c10::toString(dtype), fmt::format("{:.2e}", error));
    return error;
  };
  EXPECT_LE(error_in(at::kFloat), kRanks * 0x1p-24);
  const double in_bf16 = error_in(at::kBFloat16);
  EXPECT_LE(in_bf16, 0x1p-9);  // half of the last bit, once
  EXPECT_GT(in_bf16, 0x1p-12);
}

// A matrix of norm 4, which is cut, and a vector of norm 3.
void set_grads_of_norm_5(GeometryJob& job, const std::string& matrix, const std::string& vector) {
  for (const UnitShard& shard : job.units.shards()) {
    shard.grad.zero_();
    for (const ShardPart& part : parts(shard)) {
      const std::string& name = part.param->info.name;
      const double norm = name == matrix ? 4.0 : name == vector ? 3.0 : 0.0;
      const auto numel = static_cast<double>(c10::multiply_integers(part.param->local_shape));
      shard.grad.narrow(0, part.grad_begin, part.numel).fill_(norm / std::sqrt(numel));
    }
  }
}

TEST(ZeroNumbers, case_128_case_131_NormCountsEveryElementOnce) {
  for (const int zero : kStages) {
    for (const auto& [replicas, shards] : {std::pair{1, 1}, {1, 4}, {2, 4}, {4, 2}, {8, 1}}) {
      on_every_rank({}, {replicas, shards, zero, 1}, [](GeometryJob& job) {
        set_grads_of_norm_5(job, "model.layers.1.mlp.down_proj.weight", "model.norm.weight");
        const double norm = global_grad_norm(job.units.shards(), job.units.holders());
        const std::lock_guard lock(the_lock);
        EXPECT_NEAR(norm, 5.0, 1e-14);
      });
    }
  }
}

// Where the same pieces are summed, the norm has the same bits; whole tensors and pieces differ in
// the last bits of float64.
TEST(ZeroNumbers, case_133_StagesAgreeOnTheNorm) {
  const Recipe recipe{.optimizer = kSgd, .steps = 3};
  const std::vector<double> whole = run_on_threads(recipe, {1, 4, 0, 1}).norms;
  const std::vector<double> pieces = run_on_threads(recipe, {1, 4, 1, 1}).norms;
  for (std::size_t s = 0; s < whole.size(); ++s) {
    EXPECT_LE(relative_error(pieces[s], whole[s]), 1e-14);
  }
  for (const int zero : {2, 3}) {
    EXPECT_EQ(run_on_threads(recipe, {1, 4, zero, 1}).norms, pieces) << zero;
  }
}

TEST(ZeroNumbers, case_134_ShardsKnowWhatDecays) {
  for (const ModelSpec& spec : {tiny_gpt2(), tiny_qwen3()}) {
    for (const int zero : kStages) {
      const Recipe recipe{.spec = spec, .optimizer = {.name = "adamw", .weight_decay = 0.1}};
      on_every_rank(recipe, {1, 4, zero, 1}, [](GeometryJob& job) {
        for (const UnitShard& shard : job.units.shards()) shard.value.fill_(1.0);
        job.optimizer->step(0.1, 1.0);  // gradients are zero
        for (const auto& [name, value] : whole_weights(job.units)) {
          const double want = value.dim() == 2 ? 0.99 : 1.0;
          const std::lock_guard lock(the_lock);
          EXPECT_LE(value.sub(want).abs().max().item<double>(), 1e-15) << name;
        }
      });
    }
  }
}

// A reduction a micro-batch that forgets the earlier ones, or takes each for the last.
TEST(ZeroNumbers, case_022_OnlyTheFirstMicrobatchTrains) {
  Recipe recipe{.optimizer = kSgd, .steps = 2};
  // Of 24 samples each of 2 ranks reads 12, 3 a micro-batch.
  recipe.trained = [](std::int64_t sample) { return sample % 12 < 3 ? 5 : 0; };
  const RunResult want = run_on_threads(recipe, {1, 2, 0, 4});
  EXPECT_GT(want.norms[0], 1e-3);
  for (const int zero : {1, 2, 3}) {
    for (const bool reduce_once : {false, true}) {
      const Geometry geometry{1, 2, zero, 4, 1, reduce_once};
      const Difference worst = difference(run_on_threads(recipe, geometry), want);
      EXPECT_LE(worst.max_rel, 1e-12) << geometry.name() << ": " << worst.where;
    }
  }
}

}  // namespace
}  // namespace quatrain
