// SPDX-License-Identifier: Apache-2.0
// What has gone wrong in pipelines elsewhere: the loss's divisor, copies of a tied table, weights
// that are used twice, replicas that train alone, norms of one stage.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "quatrain/comm/thread/thread.h"
#include "quatrain/engine/rank_thread.h"
#include "quatrain/engine/replica_check.h"
#include "tests/pipeline/grid.h"

namespace quatrain {
namespace {

const std::string kTable = "transformer.wte.weight";

Geometry staged(const std::string& schedule, int ranks = 2, int chunks = 1) {
  return {.accumulation = 4, .schedule = schedule, .pipeline = ranks, .chunks = chunks};
}

// Two stages, fused and split, and split over two data ranks.
std::vector<Geometry> geometries_of_two() {
  Geometry sharded = staged("zb-h1");
  sharded.shards = 2;
  sharded.zero_stage = 1;
  sharded.accumulation = 2;
  return {staged("1f1b"), staged("zb-h1"), sharded};
}

// Plain SGD, which shows a factor that Adam hides.
TEST(PipelineCases, case_001_GradientsAreOfTheMeanLoss) {
  for (const ModelSpec& spec : {tiny_gpt2(), tiny_llama()}) {
    const Recipe recipe{.spec = with_layers(spec, 4), .global_batch = 8, .steps = 2};
    const RunResult one = run_on_threads(recipe, {.accumulation = 4});
    for (const int ranks : {2, 4}) {
      for (const std::string schedule : {"1f1b", "zb-h1"}) {
        SCOPED_TRACE(spec.name + ", " + staged(schedule, ranks).name());
        const RunResult run = run_on_threads(recipe, staged(schedule, ranks));
        EXPECT_NEAR(run.norms[0] / one.norms[0], 1.0, kTight);
        for (const auto& [name, grad] : one.grads[0]) {
          const double length = grad.norm().item<double>();
          if (length < 1e-12 * one.norms[0]) continue;
          EXPECT_NEAR(run.grads[0].at(name).norm().item<double>() / length, 1.0, kTight) << name;
        }
        const Difference worst = difference(run, one);
        EXPECT_LE(worst.max_rel, kTight) << worst.where;
      }
    }
  }
}

// Whatever runs under what, and though neither gradient sums up in one order.
TEST(PipelineCases, case_019_CopiesOfATiedTableStayTheSame) {
  const Recipe recipe{.spec = tiny_gpt2(),
                      .optimizer = {.name = "adamw", .lr = 1e-2, .weight_decay = 0.1},
                      .global_batch = 8};
  for (const Geometry& geometry : geometries_of_two()) {
    for (const bool post_validation : {false, true}) {
      SCOPED_TRACE(geometry.name() + (post_validation ? ", post-validation" : ""));
      Side side = side_of(recipe, geometry);
      side.job.executor.post_validation = post_validation;
      side.job.executor.trace = false;
      at::Tensor first;
      run_steps(side, 50, [&](const StepView& view) {
        for (const ScatteredTensors& tensors : {view.weights, view.grads}) {
          const auto table = tensors.find(kTable);
          if (table == tensors.end()) continue;
          const std::vector<Piece>& pieces = table->second.pieces;
          const auto half = pieces.size() / 2;
          for (std::size_t i = 0; i < half; ++i) {
            EXPECT_EQ(pieces[i].box, pieces[i + half].box);
            EXPECT_TRUE(at::equal(pieces[i].values, pieces[i + half].values))
                << "step " << view.step;
          }
        }
        const at::Tensor table = assemble(view.weights.at(kTable));
        if (view.step == 0) first = table;
        if (view.step == 50) {
          EXPECT_GT(table.sub(first).abs().max().item<double>(), 0.1);
        }
        return !::testing::Test::HasFailure();
      });
    }
  }
}

// The mean loss of the first step at a table moved along `direction`, by one rank.
double loss_at(const Recipe& recipe, const at::Tensor& direction, double way) {
  Side side = side_of(recipe, {.accumulation = 4});
  side.job.fill = [&](Model& model, ZeroUnits& units, Communicator&) {
    units.initialise(side.job.init_seed);
    model.param(kTable).value.add_(direction, way);
  };
  return run_steps(side, 1).losses[0];
}

// The table is read by the embedding and by the head of the same path: on one stage, on two of one
// rank, on two ranks.
TEST(PipelineCases, case_028_AWeightUsedTwiceCountsTwice) {
  const Recipe recipe{.spec = with_layers(tiny_gpt2(), 4), .global_batch = 8, .steps = 1};
  const at::Tensor plain = run_on_threads(recipe, {.accumulation = 4}).grads[0].at(kTable);
  const at::Tensor direction = plain.div(plain.norm());
  constexpr double kWay = 1e-5;
  const double slope =
      (loss_at(recipe, direction, kWay) - loss_at(recipe, direction, -kWay)) / (2 * kWay);
  for (const Geometry& geometry : {staged("zb-h1", 1), staged("zb-v", 2, 2), staged("v-half", 2, 2),
                                   staged("zb-h1"), staged("zb-h2", 4)}) {
    SCOPED_TRACE(geometry.name());
    const at::Tensor grad = run_on_threads(recipe, geometry).grads[0].at(kTable);
    EXPECT_LE(relative_error(grad, plain), kTight);
    EXPECT_NEAR(grad.mul(direction).sum().item<double>() / slope, 1.0, 1e-7);
  }
}

// Steps of one geometry, with check_replicas() behind each.
void run_checked(const Recipe& recipe, const Geometry& geometry) {
  run_thread_ranks(geometry.ranks(), {}, [&](std::unique_ptr<Communicator> world) {
    const RankThread prologue({.threads = 1});
    GeometryJob job(recipe, geometry, *world);
    for (int step = 1; step <= recipe.steps; ++step) {
      job.step(step);
      check_replicas(job.units, *job.optimizer, job.mesh, *world);
    }
  });
}

TEST(PipelineCases, case_029_ReplicasOfAZeroBubbleStageStayTheSame) {
  const Recipe recipe{.spec = with_layers(tiny_gpt2(), 4),
                      .optimizer = {.name = "sgd",
                                    .lr = 0.1,
                                    .weight_decay = 0.1,
                                    .momentum = 0.9,
                                    .max_norm = 0.0},
                      .global_batch = 16,
                      .steps = 3};
  Geometry plain = staged("1f1b");
  plain.replicas = 2;
  const RunResult want = run_on_threads(recipe, plain);
  const Difference from_one = difference(want, run_on_threads(recipe, {.accumulation = 8}));
  EXPECT_LE(from_one.max_rel, kTight) << from_one.where;
  for (const std::string schedule : {"zb-h1", "zb-h2"}) {
    Geometry split = plain;
    split.schedule = schedule;
    EXPECT_NO_THROW(run_checked(recipe, split)) << schedule;
    EXPECT_TRUE(same_bits(run_on_threads(recipe, split), want)) << schedule;
  }
  Geometry chunks = staged("zb-v", 2, 2);
  chunks.replicas = 2;
  EXPECT_NO_THROW(run_checked(recipe, chunks));
}

// Leaves each stage one gradient that is not zero, of its first rank.
class PlantedNorms final : public RankHooks {
 public:
  PlantedNorms(const Mesh& mesh, std::vector<double> norms)
      : mesh_(mesh), norm_(norms[static_cast<std::size_t>(mesh.coord(Axis::kPp))]) {}
  void built(RankJob& job) override { job_ = &job; }
  void on_gradients() override {
    for (const UnitShard& shard : job_->units.shards()) shard.grad.zero_();
    const bool first = mesh_.coord(Axis::kDpShard) == 0;
    const auto own = job_->units.shards();
    const auto counted = std::find_if(own.begin(), own.end(), [](const UnitShard& shard) {
      return shard.unit->name() != kTiedTable;
    });
    if (first) counted->grad[0] = norm_;
  }

 private:
  Mesh mesh_;
  double norm_;
  RankJob* job_ = nullptr;
};

TEST(PipelineCases, case_130_OneNormForAllStages) {
  const Recipe recipe{.spec = tiny_gpt2(),
                      .optimizer = {.name = "sgd", .lr = 1.0, .weight_decay = 0.0, .max_norm = 1.0},
                      .global_batch = 8,
                      .steps = 1};
  for (const Geometry& geometry : geometries_of_two()) {
    for (const bool post_validation : {false, true}) {
      SCOPED_TRACE(geometry.name() + (post_validation ? ", post-validation" : ""));
      Side side = side_of(recipe, geometry);
      side.job.executor.post_validation = post_validation;
      side.hooks = [](const Mesh& mesh) {
        return std::make_unique<PlantedNorms>(mesh, std::vector{3.0, 4.0});
      };
      const RunResult run = run_steps(side, 1);
      EXPECT_NEAR(run.norms[0], 5.0, kTight);
      std::vector<double> moved;
      for (const auto& [name, weight] : run.weights[1]) {
        const double most = weight.sub(run.weights[0].at(name)).abs().max().item<double>();
        if (most > 0.0) moved.push_back(most);
      }
      std::sort(moved.begin(), moved.end());
      ASSERT_EQ(moved.size(), 2U);
      const double scale = clip_scale(5.0, 1.0);  // 0.2, but for its guard against division by 0
      EXPECT_NEAR(moved[0], 3.0 * scale, kTight);
      EXPECT_NEAR(moved[1], 4.0 * scale, kTight);
    }
  }
}

}  // namespace
}  // namespace quatrain
