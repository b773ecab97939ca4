// SPDX-License-Identifier: Apache-2.0
// What goes wrong with copies and ends: terms that are averaged or forgotten, elements counted
// twice, biases added on every rank, logits that no rank sees whole.
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <mutex>

#include "quatrain/comm/thread/thread.h"
#include "quatrain/engine/rank_thread.h"
#include "quatrain/hub/hub.h"
#include "quatrain/nn/whole.h"
#include "tests/tensor/grid.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;

std::mutex the_lock;
void on_every_rank(const Recipe& recipe, const Geometry& geometry,
                   const std::function<void(GeometryJob&, Communicator&)>& check) {
  SCOPED_TRACE(geometry.name());
  run_thread_ranks(geometry.ranks(), {}, [&](std::unique_ptr<Communicator> world) {
    const RankThread prologue({.threads = 1});
    GeometryJob job(recipe, geometry, *world);
    check(job, *world);
  });
}

std::vector<Geometry> on_four_ranks() {
  return {{.tensor = 4}, {.tensor = 4, .sequence_parallel = true}};
}

// Gradients of copies, before the update: the same bits on all that hold one, and one rank's.
TEST(TensorNumbers, case_013_case_014_CopiesHaveTheWholeGradient) {
  for (const ModelSpec& spec : tensor_models()) {
    const Recipe recipe{.spec = spec, .global_batch = 4, .steps = 1};
    const RunResult want = one_rank(recipe);
    for (const Geometry& geometry : on_four_ranks()) {
      std::map<std::pair<std::string, std::int64_t>, at::Tensor> first;  // by name and place
      on_every_rank(recipe, geometry, [&](GeometryJob& job, Communicator&) {
        job.step(1);
        const std::lock_guard lock(the_lock);
        for (const auto& unit : job.model.units()) {
          for (const Param& param : unit->params()) {
            if (param.replicas == 1) continue;
            const auto [at, is_first] =
                first.try_emplace({param.info.name, param.begin[0]}, param.grad.clone());
            EXPECT_TRUE(is_first || at::equal(param.grad, at->second)) << param.info.name;
            if (param.local_shape != param.info.shape) continue;
            const TensorError error =
                compare({{param.info.name, param.grad}},
                        {{param.info.name, want.grads[0].at(param.info.name)}})[0];
            EXPECT_LE(error.max_rel, 1e-12) << error.name;
          }
        }
      });
    }
  }
}

// A matrix of norm 4, which is cut, and a copied vector of norm 3.
TEST(TensorNumbers, case_128_NormCountsEveryElementOnce) {
  const auto fill = [](GeometryJob& job) {
    for (const UnitShard& shard : job.units.shards()) {
      shard.grad.zero_();
      for (const ShardPart& part : parts(shard)) {
        const ParameterInfo& info = part.param->info;
        const double norm = info.name == "model.layers.1.mlp.down_proj.weight" ? 4.0
                            : info.name == "model.norm.weight"                 ? 3.0
                                                                               : 0.0;
        shard.grad.narrow(0, part.grad_begin, part.numel)
            .fill_(norm / std::sqrt(static_cast<double>(info.numel())));
      }
    }
  };
  const Recipe recipe{.spec = tensor_qwen3(), .global_batch = 4};
  for (const int zero : {0, 1, 2, 3}) {
    for (const auto& [shards, degree] : {std::pair{1, 1}, {1, 2}, {1, 4}, {2, 4}, {1, 8}}) {
      on_every_rank(recipe, {.shards = shards, .zero_stage = zero, .tensor = degree},
                    [&](GeometryJob& job, Communicator&) {
                      fill(job);
                      const double norm = global_grad_norm(job.units.shards(), job.units.holders());
                      const std::lock_guard lock(the_lock);
                      EXPECT_NEAR(norm, 5.0, 1e-13);
                    });
    }
  }
}

TEST(TensorNumbers, case_136_LargestLogitsAreSeenWhereverTheyAre) {
  for (const ModelSpec& spec : tensor_models()) {
    const Recipe recipe{.spec = spec, .global_batch = 4};
    StepReport want;
    on_every_rank(recipe, {}, [&](GeometryJob& job, Communicator&) { want = job.step(1); });
    EXPECT_GT(want.max_logit, 0.0);
    EXPECT_GT(want.max_attention_lse, 0.0);
    for (const Geometry& geometry : on_four_ranks()) {
      on_every_rank(recipe, geometry, [&](GeometryJob& job, Communicator&) {
        const StepReport got = job.step(1);
        const std::lock_guard lock(the_lock);
        EXPECT_LE(relative_error(got.max_logit, want.max_logit), 1e-12);
        EXPECT_LE(relative_error(got.max_attention_lse, want.max_attention_lse), 1e-12);
      });
    }
  }
}

// Loaded on four ranks, whole again: every bit of every tensor, biases of row-parallel layers among
// them; and the first loss is one rank's.
TEST(TensorNumbers, case_056_LoadedAndSavedThroughFourRanks) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("quatrain_tp_{}", getpid());
  for (const ModelSpec& spec : {tensor_gpt2(), tensor_qwen2()}) {
    Model whole(spec, {.dtype = at::kDouble});
    whole.allocate(false);
    whole.initialise(5);
    for (const auto& unit : whole.units()) unit->flat_value().add_(0.01);  // biases are not zero
    save_weights(whole, folder / "in");
    const Recipe recipe{.spec = spec, .global_batch = 4};
    const auto first_loss = [&](const Geometry& geometry) {
      double loss = 0.0;
      on_every_rank(recipe, geometry, [&](GeometryJob& job, Communicator& world) {
        load_weights(job.model, folder / "in");
        WholeWeights weights;
        for (const auto& unit : job.model.units()) {
          for (const Param& param : unit->params()) {
            weights.emplace(param.info.name,
                            whole_over(job.units.tensor_ranks(), param, param.value));
          }
        }
        if (world.rank() == 0) save_weights(job.model, weights, folder / "out");
        const StepReport report = job.step(1);
        if (world.rank() == 0) loss = report.loss;
      });
      return loss;
    };
    const double one = first_loss({});
    for (const Geometry& geometry : on_four_ranks()) {
      fs::remove_all(folder / "out");
      EXPECT_LE(relative_error(first_loss(geometry), one), 1e-13);
      Model again(spec, {.dtype = at::kDouble});
      again.allocate(false);
      load_weights(again, folder / "out");
      for (std::size_t u = 0; u < again.units().size(); ++u) {
        EXPECT_TRUE(at::equal(again.units()[u]->flat_value(), whole.units()[u]->flat_value()));
      }
    }
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace quatrain
