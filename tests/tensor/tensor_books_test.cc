// SPDX-License-Identifier: Apache-2.0
// The books of tensor and sequence parallelism: what every rank sends, computes, keeps and holds
// for a while, counted while steps run, equals cost/ exactly.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <mutex>

#include "quatrain/comm/thread/thread.h"
#include "quatrain/cost/peaks.h"
#include "quatrain/engine/microbatch.h"
#include "quatrain/engine/pass_builder.h"
#include "quatrain/engine/rank_thread.h"
#include "quatrain/kernels/matmul.h"
#include "tests/books/stash_rows.h"
#include "tests/tensor/grid.h"
#include "tests/zero/counted_run.h"

namespace quatrain {
namespace {

std::vector<ModelSpec> priced_models() {
  std::vector<ModelSpec> all = tensor_models();
  for (const ModelSpec& mixture : tensor_mixtures()) all.push_back(mixture);
  return all;
}

// How the residual stream lies and how weight halves find their inputs.
std::vector<Geometry> splits(const std::vector<int>& degrees) {
  std::vector<Geometry> all;
  for (const int degree : degrees) {
    all.push_back({.tensor = degree});
    all.push_back({.tensor = degree, .sequence_parallel = true});
    if (degree == 1) continue;
    all.push_back({.tensor = degree, .sequence_parallel = true, .gather_again = true});
  }
  return all;
}

struct Counted {
  Recipe recipe;
  Geometry geometry;
  bool deferred = false;  // weight halves run by themselves
  std::string name(int rank) const {
    return fmt::format("{} {}, {}, {}, rank {}", recipe.spec.name, quatrain::name(recipe.dtype),
                       Case{recipe, geometry}.name(), deferred ? "deferred" : "fused", rank);
  }
};

void expect_the_cost(const Counted& run) {
  static std::mutex mutex;
  const Recipe& recipe = run.recipe;
  on_every_rank(recipe, run.geometry, [&](GeometryJob& job, CommCounts& counts, MemoryOwner& m) {
    if (run.deferred) job.schedule = split_backward(job.schedule);
    (void)job.step(1);
    const CommCounts before = counts;
    m.reset_peak();
    const StepReport report = job.step(2);
    const WireCosts sent = wire_of(counts.since(before));
    const WireCosts want =
        step_wire(job.schedule.per_rank[0], recipe.spec, work_of(recipe, job),
                  zero_shape(recipe.spec, job.plan, recipe.trainable, job.mesh.rank()));
    const std::lock_guard lock(mutex);
    SCOPED_TRACE(run.name(job.mesh.rank()));
    EXPECT_EQ(text_of(sent), text_of(want));
    expect_flops(report, work_of(recipe, job), job);
    expect_memory(m, recipe, work_of(recipe, job), job);
  });
}

TEST(TensorBooks, AStepIsTheCost) {
  for (const ModelSpec& spec : priced_models()) {
    for (const Geometry& geometry : splits({1, 2, 4, 8})) {
      for (const auto recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        const Recipe recipe{.spec = spec, .recompute = recompute, .global_batch = 2};
        for (const bool deferred : {false, true}) expect_the_cost({recipe, geometry, deferred});
      }
    }
  }
}

// 251 words and a width of 129 on 2, 3 and 4 ranks; fewer rows than ranks; pieces of products.
TEST(TensorBooks, case_094_case_098_UnevenPartsAreTheCost) {
  for (const bool gelu : {false, true}) {
    ModelSpec spec = gelu ? tiny_gpt2() : tiny_llama();
    spec.vocab = 251;
    spec.ffn = 129;
    spec.heads = spec.kv_heads = 12;
    for (Geometry geometry : splits({2, 3, 4})) {
      for (const std::int64_t seq : {1, 3, 9}) {
        for (const int chunks : {1, 2, 5}) {
          geometry.overlap_chunks = chunks;
          expect_the_cost({{.spec = spec, .global_batch = 1, .seq = seq}, geometry});
        }
      }
    }
  }
}

// Composed with ZeRO, replicas and accumulation; in bf16; with parameters that are not trained.
TEST(TensorBooks, CompositionsAreTheCost) {
  for (const ModelSpec& spec : priced_models()) {
    for (const Dtype dtype : {Dtype::kBFloat16, Dtype::kFloat64}) {
      for (const int zero : {0, 1, 2, 3}) {
        Recipe recipe{.spec = spec, .dtype = dtype, .optimizer = {.name = "adamw"}};
        recipe.global_batch = 8;
        if (zero == 3) recipe.trainable = {"*norm*", "*k_proj*", "*layers.1.*", "*bias", "*embed*"};
        std::erase_if(recipe.trainable, [&](const std::string& pattern) {
          std::vector<ParameterInfo> list = parameters(spec);
          return !set_trainable(list, {pattern}).empty();
        });
        for (Geometry geometry : splits({2, 4})) {
          geometry.zero_stage = zero;
          geometry.shards = 2;
          geometry.accumulation = 2;
          expect_the_cost({recipe, geometry, geometry.gather_again});
        }
        Geometry hybrid{.replicas = 2, .shards = 2, .zero_stage = zero, .tensor = 2};
        hybrid.sequence_parallel = true;
        expect_the_cost({recipe, hybrid});
        hybrid.shards = 1;
        expect_the_cost({recipe, hybrid});
      }
    }
  }
}

// Calls check(model, pass, cost's shape, memory) on every rank of a geometry without data ranks.
using CheckPass = std::function<void(Model&, const Pass&, const WorkShape&, MemoryOwner&)>;
void on_every_part(const Recipe& recipe, const Geometry& geometry, const CheckPass& check) {
  on_every_rank(recipe, geometry, [&](GeometryJob& job, CommCounts&, MemoryOwner& memory) {
    Model model(recipe.spec, {.dtype = scalar_type(recipe.dtype),
                              .recompute = recipe.recompute,
                              .trainable = recipe.trainable,
                              .head_chunk_tokens = kHeadChunk,
                              .tp = job.groups.tensor.get(),
                              .tensor = {.sequence_parallel = geometry.sequence_parallel,
                                         .gather_again = geometry.gather_again,
                                         .overlap_chunks = geometry.overlap_chunks}});
    model.allocate(true);
    model.initialise(11);
    AccumulatingSink sink;
    const Pass pass = training_pass(job.data.microbatch(1, 0), {1, 0.1, 0.0, 3, &sink}, 0,
                                    job.model.context_parallel());
    check(model, pass, work_of(recipe, job), memory);
  });
}

const std::vector<std::vector<std::string>> kTrainable = {
    {}, {"*layers.1.*", "*.h.1.*", "*norm*"}, {"*q_proj*", "*down_proj.weight", "*c_proj.bias"}};

std::vector<Recipe> recipes() {
  std::vector<Recipe> all;
  for (const ModelSpec& plain : priced_models()) {
    for (const ModelSpec& spec : {plain, with_dropout(plain)}) {
      for (const auto recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        for (const auto& patterns : kTrainable) {
          Recipe& recipe = all.emplace_back();
          recipe.spec = spec;
          recipe.recompute = recompute;
          recipe.dtype = plain.qk_norm ? Dtype::kBFloat16 : Dtype::kFloat64;
          recipe.global_batch = 2;
          for (const std::string& pattern : patterns) {
            std::vector<ParameterInfo> list = parameters(spec);
            if (set_trainable(list, {pattern}).empty()) recipe.trainable.push_back(pattern);
          }
        }
      }
    }
  }
  return all;
}

TEST(TensorBooks, StashesHoldWhatTheWalkSays) {
  std::mutex mutex;
  for (const Recipe& recipe : recipes()) {
    for (const Geometry& geometry : splits({2, 4, 8})) {
      on_every_part(
          recipe, geometry,
          [&](Model& model, const Pass& pass, WorkShape work, MemoryOwner& memory) {
            work.fused_backward = false;
            const std::vector<UnitCost> units = walk(recipe.spec, work);
            Microbatch microbatch(model.layers(), pass);
            const std::int64_t before = memory.live()[MemoryCategory::kActivations];
            const auto live = [&] { return memory.live()[MemoryCategory::kActivations] - before; };
            const std::string where = Counted{recipe, geometry}.name(work.split.rank);
            const auto expect_rows = [&](auto rows_then, auto bytes_then) {
              const std::lock_guard lock(mutex);
              std::int64_t sum = 0;
              for (std::size_t u = 0; u < units.size(); ++u) {
                const Stash& stash = microbatch.stashes()[u];
                EXPECT_EQ(rows_of(stash), rows_then(units[u])) << units[u].name << " " << where;
                EXPECT_EQ(stash.bytes(), (units[u].*bytes_then)().value) << units[u].name << where;
                sum += (units[u].*bytes_then)().value;
              }
              EXPECT_EQ(live(), sum) << where;
            };
            microbatch.forward();
            expect_rows(rows_after_forward, &UnitCost::stash);
            microbatch.backward_input();
            expect_rows(rows_after_input_half, &UnitCost::weight_stash);
            microbatch.backward_weight();
            EXPECT_EQ(live(), 0) << where;
          });
      if (::testing::Test::HasFailure()) return;
    }
  }
}

void expect_scratch(const Recipe& recipe, const Geometry& geometry, bool widened) {
  static std::mutex mutex;
  on_every_part(recipe, geometry,
                [&](Model& model, const Pass& pass, const WorkShape& work, MemoryOwner& memory) {
                  const std::int64_t before = memory.live()[MemoryCategory::kTransient];
                  memory.reset_peak();
                  Microbatch microbatch(model.layers(), pass);
                  microbatch.forward();
                  microbatch.backward();
                  const std::int64_t highest =
                      memory.highest()[MemoryCategory::kTransient] - before;
                  const std::int64_t bound = transient_bound(recipe.spec, work, widened).value;
                  const std::lock_guard lock(mutex);
                  const std::string where = Counted{recipe, geometry}.name(work.split.rank);
                  EXPECT_LE(highest, bound) << where;
                  EXPECT_GE(highest, bound / 6) << "the bound is loose: " << where;
                });
}

TEST(TensorBooks, ScratchStaysUnderItsBound) {
  for (const Recipe& recipe : recipes()) {
    if (!recipe.trainable.empty()) continue;
    for (Geometry geometry : splits({2, 8})) {
      for (const int chunks : {1, 3}) {
        geometry.overlap_chunks = chunks;
        for (const bool widened : {false, true}) {
          if (widened && recipe.dtype != Dtype::kBFloat16) continue;
          kernels::widen_bf16_products(widened);
          expect_scratch(recipe, geometry, widened);
        }
        kernels::widen_bf16_products(false);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace quatrain
