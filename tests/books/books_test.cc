// SPDX-License-Identifier: Apache-2.0
// The exactness of the books: FLOPs counted while a step runs equal cost/'s walk, and so do the
// bytes that stashes hold, row by row, after the forward and after the input half.
#include <gtest/gtest.h>

#include <string>

#include "quatrain/cost/walk.h"
#include "quatrain/cost/zero.h"
#include "quatrain/engine/engine_test_support.h"
#include "quatrain/engine/microbatch.h"
#include "quatrain/engine/pass_builder.h"
#include "quatrain/engine/rank_thread.h"
#include "quatrain/kernels/matmul.h"
#include "quatrain/kernels/memory.h"
#include "tests/books/stash_rows.h"

namespace quatrain {
namespace {

const std::vector<std::vector<std::string>> kTrainable = {
    {},
    {"*layers.1.*", "*.h.1.*", "*norm*"},
    {"*q_proj*", "*down_proj.weight", "*c_fc.bias", "*lm_head*"},
    {"*o_proj*", "*embed_tokens*", "*wpe*", "*k_norm*", "*ln_1.bias"},
};
// Of mixtures, whole kinds: which rows an expert gets is the router's business.
const std::vector<std::vector<std::string>> kTrainableMixture = {
    {},
    {"*layers.1.*", "*norm*"},
    {"*gate.weight", "*_b_proj*", "*shared_experts.down_proj*"},
    {"*experts.*.down_proj.weight", "*.w2.weight", "*kv_a_proj*", "*q_a_layernorm*"},
    {"*experts.*.gate_proj.weight", "*.w1.weight", "*q_a_proj*", "*kv_a_layernorm*", "*o_proj*"},
    {"*shared_experts.up_proj*", "*q_proj*", "*mlp.gate_proj*"},
};

// Patterns that some parameter of the model matches.
std::vector<std::string> that_match(const ModelSpec& spec, const std::vector<std::string>& all) {
  std::vector<std::string> result;
  for (const std::string& pattern : all) {
    std::vector<ParameterInfo> list = parameters(spec);
    if (set_trainable(list, {pattern}).empty()) result.push_back(pattern);
  }
  return result;
}

struct Setting {
  ModelSpec spec;
  Dtype dtype;
  Recompute recompute;
  std::vector<std::string> trainable;
  std::string name() const {
    return spec.name + " recompute " + std::to_string(static_cast<int>(recompute)) + " first " +
           (trainable.empty() ? "all" : trainable[0]);
  }
  BuildOptions build() const {
    return {.dtype = scalar_type(dtype),
            .recompute = recompute,
            .trainable = trainable,
            .head_chunk_tokens = 7};
  }
  WorkShape shape(std::int64_t batch, std::int64_t seq) const {
    return {.batch = batch,
            .seq = seq,
            .dtype = dtype,
            .recompute = recompute,
            .head_chunk_tokens = 7,
            .trainable = trainable};
  }
};

void add_settings(std::vector<Setting>& result, const ModelSpec& spec,
                  const std::vector<Dtype>& dtypes) {
  for (const Dtype dtype : dtypes) {
    for (const auto recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      for (const auto& patterns : spec.experts ? kTrainableMixture : kTrainable) {
        result.push_back({spec, dtype, recompute, that_match(spec, patterns)});
      }
    }
  }
}

std::vector<Setting> settings(const std::vector<Dtype>& dtypes) {
  std::vector<Setting> result;
  for (const ModelSpec& plain : tiny_models()) {
    add_settings(result, plain, dtypes);
    add_settings(result, with_dropout(plain), dtypes);
  }
  for (const ModelSpec& mixture : tiny_mixtures()) add_settings(result, mixture, dtypes);
  return result;
}

class BooksTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { install_counting_allocator(); }
  MemoryOwner memory_;
  RankThread prologue_{{.threads = 1, .memory = &memory_}};
};

TEST_F(BooksTest, CountedFlopsEqualTheWalk) {
  for (const Setting& setting : settings({Dtype::kFloat32})) {
    SCOPED_TRACE(setting.name());
    Job job({.spec = setting.spec, .build = setting.build(), .data = {.microbatch_size = 2}});
    const FlopCounter counted = job.step().flops;
    Flops forward{}, input{}, weight{};
    for (const UnitCost& unit : walk(setting.spec, setting.shape(4, 9))) {
      forward += unit.forward();
      input += unit.backward_input();
      weight += unit.backward_weight();
    }
    EXPECT_EQ(static_cast<double>(counted[PassKind::kForward]), forward.value);
    EXPECT_EQ(static_cast<double>(counted[PassKind::kBackwardInput]), input.value);
    EXPECT_EQ(static_cast<double>(counted[PassKind::kBackwardWeight]), weight.value);
    if (setting.recompute == Recompute::kFull) continue;
    const Flops model = model_flops(setting.spec, 4, 9, setting.trainable);
    EXPECT_EQ(static_cast<double>(counted.total()), model.value);
  }
}

// However a step is cut into micro-batches, it does the model's FLOPs: kv 2 of q 4, ffn != 4 D.
TEST_F(BooksTest, case_145_AccumulationDoesNotChangeTheFlops) {
  for (const std::int64_t size : {4, 2, 1}) {
    Job job({.spec = tiny_llama(), .data = {.microbatch_size = size}});
    const double counted = static_cast<double>(job.step().flops.total());
    EXPECT_EQ(counted, model_flops(tiny_llama(), 4, 9).value);
  }
}

TEST_F(BooksTest, StashesHoldWhatTheWalkSays) {
  AccumulatingSink sink;
  for (const Setting& setting : settings({Dtype::kFloat32, Dtype::kBFloat16, Dtype::kFloat64})) {
    SCOPED_TRACE(setting.name());
    Model model = make_model(setting.spec, setting.build());
    SyntheticLoader data({.microbatch_size = 2});
    const std::vector<UnitCost> units = walk(setting.spec, setting.shape(2, 9));
    Microbatch microbatch(
        model.layers(),
        training_pass(data.microbatch(1, 0), {1, 0.1, 0.0, 3, &sink}, 0, model.context_parallel()));
    const std::int64_t before = memory_.live()[MemoryCategory::kActivations];
    const auto live = [&] { return memory_.live()[MemoryCategory::kActivations] - before; };

    microbatch.forward();
    std::int64_t sum = 0;
    for (std::size_t u = 0; u < units.size(); ++u) {
      const Stash& stash = microbatch.stashes()[u];
      EXPECT_EQ(rows_of(stash), rows_after_forward(units[u])) << units[u].name;
      EXPECT_EQ(stash.bytes(), units[u].stash().value) << units[u].name;
      sum += units[u].stash().value;
    }
    EXPECT_EQ(live(), sum);

    microbatch.backward_input();
    sum = 0;
    for (std::size_t u = 0; u < units.size(); ++u) {
      const Stash& stash = microbatch.stashes()[u];
      EXPECT_EQ(rows_of(stash), rows_after_input_half(units[u])) << units[u].name;
      EXPECT_EQ(stash.bytes(), units[u].weight_stash().value) << units[u].name;
      sum += units[u].weight_stash().value;
    }
    EXPECT_EQ(live(), sum);

    microbatch.backward_weight();
    EXPECT_EQ(microbatch.stash_bytes(), 0);
    EXPECT_EQ(live(), 0);
    if (HasFailure()) return;
  }
}

std::int64_t highest_transient(const Setting& setting, std::int64_t batch, std::int64_t seq,
                               MemoryOwner& memory) {
  AccumulatingSink sink;
  Model model = make_model(setting.spec, setting.build());
  SyntheticLoader data({.seq = seq, .global_batch = batch, .microbatch_size = batch});
  Microbatch microbatch(
      model.layers(),
      training_pass(data.microbatch(1, 0), {1, 0.1, 0.0, 3, &sink}, 0, model.context_parallel()));
  const std::int64_t before = memory.live()[MemoryCategory::kTransient];
  memory.reset_peak();
  microbatch.forward();
  microbatch.backward();
  return memory.highest()[MemoryCategory::kTransient] - before;
}

// Beside what stashes keep, a pass has tensors in flight and scratch inside operations: bounded by
// the largest layer's, whatever the depth, and not by positions squared or the vocabulary.
TEST_F(BooksTest, ScratchStaysUnderItsBound) {
  for (Setting setting : settings({Dtype::kFloat32, Dtype::kBFloat16, Dtype::kFloat64})) {
    setting.spec.max_positions = 64;
    for (const bool widened : {false, true}) {
      if (widened && setting.dtype != Dtype::kBFloat16) continue;
      kernels::widen_bf16_products(widened);
      for (const auto& [batch, seq] : {std::pair{2, 9}, {1, 32}, {3, 31}}) {
        SCOPED_TRACE(setting.name());
        const std::int64_t highest = highest_transient(setting, batch, seq, memory_);
        const std::int64_t bound =
            transient_bound(setting.spec, setting.shape(batch, seq), widened).value;
        EXPECT_LE(highest, bound);
        EXPECT_GE(highest, bound / 6) << "the bound is loose";
      }
    }
    kernels::widen_bf16_products(false);
  }
}

TEST_F(BooksTest, StateHoldsWhatTheCostSays) {
  for (const Setting& setting : settings({Dtype::kBFloat16, Dtype::kFloat64})) {
    if (setting.recompute != Recompute::kNone) continue;
    SCOPED_TRACE(setting.name());
    const MemoryUse before = memory_.live();
    Model model = make_model(setting.spec, setting.build());
    std::vector<ParamUnit*> units;
    for (const auto& unit : model.units()) units.push_back(unit.get());
    const auto optimizer = make_optimizer({.name = "adamw"}, units);
    optimizer->allocate();
    const MemoryUse after = memory_.live();
    Plan plan;
    plan.dtype = setting.dtype;
    const StateBytes want =
        state_bytes(zero_shape(setting.spec, plan, setting.trainable, 0), "adamw", 0.0);
    const auto grown = [&](MemoryCategory c) { return after[c] - before[c]; };
    EXPECT_EQ(grown(MemoryCategory::kParams), want.params.value);
    EXPECT_EQ(grown(MemoryCategory::kGrads), want.grads.value);
    EXPECT_EQ(grown(MemoryCategory::kOptimizer), want.optimizer.value);
  }
}

// Steps after the first leave the same bytes behind: nothing grows.
TEST_F(BooksTest, StepsLeaveNoBytesBehind) {
  Job job({.spec = tiny_qwen3(), .optimizer = {.name = "adamw"}});
  (void)job.step(1);
  const std::int64_t live = memory_.live().total();
  (void)job.step(2);
  EXPECT_EQ(memory_.live().total(), live);
  EXPECT_EQ(memory_.live()[MemoryCategory::kActivations], 0);
}

}  // namespace
}  // namespace quatrain
