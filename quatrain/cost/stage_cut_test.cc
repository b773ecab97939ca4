// SPDX-License-Identifier: Apache-2.0
// Cuts against all cuts of small models, and against what the zero-bubble literature says of heads.
#include "quatrain/cost/stage_cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <utility>

#include "quatrain/base/error.h"
#include "quatrain/cost/test_models.h"
#include "quatrain/spec/parameters.h"

namespace quatrain {
namespace {

using Layers = std::vector<std::int64_t>;
using Times = std::vector<double>;

UnitCost unit_of(double flops) {
  OpCost op;
  op.forward = {flops};
  return {"", {op}};
}
// Embedding, blocks, head.
std::vector<UnitCost> units_of(const Times& flops) {
  std::vector<UnitCost> units;
  for (double f : flops) units.push_back(unit_of(f));
  return units;
}
Times times_of(const std::vector<UnitCost>& units) {
  Times times;
  for (const UnitCost& u : units) {
    times.push_back((u.forward() + u.backward_input() + u.backward_weight()).value);
  }
  return times;
}

// Of each stage, in order.
Times stage_times(const Times& units, const Layers& cut) {
  Times times;
  auto unit = units.begin() + 1;
  for (std::int64_t layers : cut) {
    times.push_back(std::accumulate(unit, unit + layers, 0.0));
    unit += layers;
  }
  times.front() += units.front();
  times.back() += units.back();
  return times;
}
double slowest(const Times& units, const Layers& cut) {
  const Times times = stage_times(units, cut);
  return *std::max_element(times.begin(), times.end());
}

// Smaller is better: stage times slowest first, then blocks from the first stage on.
using Rank = std::pair<Times, Layers>;
Rank rank_of(const Times& units, const Layers& cut) {
  Times times = stage_times(units, cut);
  std::sort(times.begin(), times.end(), std::greater<>());
  return {times, cut};
}

// All ways to cut `layers` blocks into `stages` stages of one or more.
void for_each_cut(std::int64_t layers, std::size_t stages, Layers& cut,
                  const std::function<void(const Layers&)>& visit) {
  const auto left = static_cast<std::int64_t>(stages - cut.size());
  if (left == 1) {
    cut.push_back(layers);
    visit(cut);
    cut.pop_back();
    return;
  }
  for (std::int64_t n = 1; n <= layers - left + 1; ++n) {
    cut.push_back(n);
    for_each_cut(layers - n, stages, cut, visit);
    cut.pop_back();
  }
}
Layers best_of_all(const Times& units, std::size_t stages) {
  Rank best;
  Layers cut;
  for_each_cut(static_cast<std::int64_t>(units.size()) - 2, stages, cut, [&](const Layers& other) {
    Rank rank = rank_of(units, other);
    if (best.second.empty() || rank < best) best = std::move(rank);
  });
  return best.second;
}

ModelSpec with(ModelSpec model, std::int64_t layers, std::int64_t vocab) {
  model.layers = layers;
  model.vocab = vocab;
  return model;
}
Layers cut_of(const ModelSpec& model, int stages, const WorkShape& shape = shape_of(1, 32)) {
  return balanced_layers(walk(model, shape), stages);
}

TEST(StageCut, IsTheBestOfAllCutsOfRandomUnits) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    Times units(3 + random() % 8);
    // Few values make many ties; a round in three has blocks of one cost.
    for (double& f : units) f = static_cast<double>(random() % 6);
    if (round % 3 == 0) std::fill(units.begin() + 1, units.end() - 1, 4.0);
    if (round % 2 == 0) units.back() = static_cast<double>(random() % 30);
    for (std::size_t stages = 1; stages <= units.size() - 2; ++stages) {
      EXPECT_EQ(balanced_layers(units_of(units), static_cast<int>(stages)),
                best_of_all(units, stages))
          << ::testing::PrintToString(units);
    }
  }
}

TEST(StageCut, IsTheBestOfAllCutsOfModels) {
  for (ModelSpec model : {llama_like(), gpt2_like(), qwen2_like(), qwen3_like()}) {
    for (std::int64_t vocab : {16, 251, 2048}) {
      model = with(model, 7, vocab);
      model.window = 4;
      model.window_layers = {true, true, false, true, true, false, true};
      const std::vector<UnitCost> units = walk(model, shape_of(2, 64));
      for (std::size_t stages = 1; stages <= 7; ++stages) {
        EXPECT_EQ(balanced_layers(units, static_cast<int>(stages)),
                  best_of_all(times_of(units), stages));
      }
    }
  }
}

TEST(StageCut, FiveLayersOnFourStages) {
  EXPECT_EQ(balanced_layers(units_of({0, 1, 1, 1, 1, 1, 0}), 4), (Layers{1, 1, 1, 2}));
  // A head takes room on the last stage; of the others, the latest holds the fewest micro-batches.
  EXPECT_EQ(cut_of(with(llama_like(), 5, 251), 4), (Layers{1, 1, 2, 1}));
  EXPECT_EQ(first_layers(cut_of(with(llama_like(), 5, 251), 4)), (std::vector<int>{0, 1, 2, 4}));
}

TEST(StageCut, VocabularyHeavyEndsGetFewerLayers) {
  // Heads of 0, 1.5, 2.5, 4 and 30 blocks. However large, it leaves the other stages balanced.
  EXPECT_EQ(balanced_layers(units_of({0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0}), 4),
            (Layers{3, 3, 3, 3}));
  EXPECT_EQ(balanced_layers(units_of({0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3}), 4),
            (Layers{3, 3, 4, 2}));
  EXPECT_EQ(balanced_layers(units_of({0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 5}), 4),
            (Layers{3, 4, 4, 1}));
  EXPECT_EQ(balanced_layers(units_of({0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 8}), 4),
            (Layers{3, 4, 4, 1}));
  EXPECT_EQ(balanced_layers(units_of({0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 60}), 4),
            (Layers{3, 4, 4, 1}));
  // An embedding that computes would weigh on the first stage.
  EXPECT_EQ(balanced_layers(units_of({4, 2, 2, 2, 2, 2, 2, 0}), 2), (Layers{2, 4}));
  std::int64_t last = 4;
  for (std::int64_t vocab : {64, 512, 1024, 2048, 4096}) {
    const Layers cut = cut_of(with(gpt2_like(), 16, vocab), 4);
    EXPECT_LE(cut.back(), last) << vocab;
    EXPECT_GE(cut[2], cut.back()) << vocab;
    last = cut.back();
  }
  EXPECT_EQ(last, 1);
}

// A head is 6 V / (72 h + 12 s) blocks of an MHA model with a GELU MLP of 4 h where a query sees
// all s keys, V / (12 h) of its parameters: 2.4 and 2.6 at 7B with 128k tokens and s = 2048.
// Causal rows of 2 s - 1 positions see s keys on average.
TEST(StageCut, HeadInLayerEquivalents) {
  ModelSpec m = with(gpt2_like(), 2, 128'000);
  m.hidden = 4096;
  m.heads = m.kv_heads = 32;
  m.head_dim = 128;
  m.ffn = 4 * m.hidden;
  m.tied = m.qkv_bias = m.out_bias = m.mlp_bias = false;
  m.norm = NormKind::kRmsNorm;
  m.max_positions = 4096;
  const std::int64_t s = 2048;
  const std::vector<StageCost> stages =
      stage_costs(m, shape_of(1, 2 * s - 1), {0, 1, 2}, {0, 1, 2});
  const StageCost &block = stages[1], &head = stages[2];
  const double h = 4096, V = 128'000;
  EXPECT_DOUBLE_EQ(head.flops().value / block.flops().value, 6 * V / (72 * h + 12.0 * s));
  EXPECT_NEAR(head.flops().value / block.flops().value, 2.4, 0.05);
  EXPECT_NEAR(static_cast<double>(head.parameters) / static_cast<double>(block.parameters), 2.6,
              0.05);
}

TEST(StageCut, RecomputedBlocksWeighMoreAgainstTheHead) {
  const ModelSpec m = with(llama_like(), 12, 1800);
  WorkShape shape = shape_of(1, 32);
  const Layers plain = cut_of(m, 3, shape);
  shape.recompute = Recompute::kFull;
  const Layers full = cut_of(m, 3, shape);
  EXPECT_LT(plain.back(), full.back());
  EXPECT_EQ(full, best_of_all(times_of(walk(m, shape)), 3));
}

TEST(StageCut, CoversAllBlocksInOrder) {
  for (std::int64_t layers : {1, 2, 24, 61, 126}) {
    const std::vector<UnitCost> units = walk(with(qwen3_like(), layers, 3000), shape_of(1, 16));
    const Times times = times_of(units);
    double fewer_stages = std::accumulate(times.begin(), times.end(), 0.0);
    for (int stages = 1; stages <= layers; stages = stages < 8 ? stages + 1 : 2 * stages) {
      const Layers cut = balanced_layers(units, stages);
      ASSERT_EQ(cut.size(), static_cast<std::size_t>(stages));
      EXPECT_EQ(std::accumulate(cut.begin(), cut.end(), std::int64_t{0}), layers);
      EXPECT_GE(*std::min_element(cut.begin(), cut.end()), 1);
      EXPECT_LE(slowest(times, cut), slowest(times, even_layers(layers, stages)));
      EXPECT_LE(slowest(times, cut), fewer_stages);
      fewer_stages = slowest(times, cut);
      const std::vector<int> begin = first_layers(cut);
      EXPECT_TRUE(std::is_sorted(begin.begin(), begin.end(), std::less_equal<>()));
      EXPECT_EQ(begin.front(), 0);
    }
  }
}

TEST(StageCut, EmptyStagesAreNeverChosen) {
  EXPECT_EQ(balanced_layers(units_of({0, 5}), 1), Layers{0});
  EXPECT_EQ(balanced_layers(units_of({0, 1, 1, 100}), 2), (Layers{1, 1}));
  EXPECT_THROW(balanced_layers(units_of({0, 1, 1, 1, 5}), 4), ConfigError);
  EXPECT_THROW(balanced_layers(units_of({0, 5}), 2), ConfigError);
  try {
    balanced_layers(units_of({0, 1, 1, 1, 5}), 4);
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("at most 3 stages"), std::string::npos);
  }
}

TEST(StageCut, StagesAddUpToTheModel) {
  for (ModelSpec model : {llama_like(), gpt2_like(), qwen3_like()}) {
    model = with(model, 5, 251);
    const WorkShape shape = shape_of(2, 16);
    const std::vector<UnitCost> units = walk(model, shape);
    const Layers cut{0, 2, 0, 3};
    const std::vector<StageCost> stages =
        stage_costs(model, shape, first_layers(cut), {0, 1, 2, 3});
    ASSERT_EQ(stages.size(), 4U);
    StageCost sum;
    for (std::size_t s = 0; s < 4; ++s) {
      EXPECT_EQ(stages[s].end - stages[s].begin, cut[s]);
      EXPECT_EQ(stages[s].flops().value, stage_times(times_of(units), cut)[s]);
      sum.parameters += stages[s].parameters;
      sum.forward += stages[s].forward;
      sum.backward_input += stages[s].backward_input;
      sum.backward_weight += stages[s].backward_weight;
    }
    Flops forward{}, input{}, weight{};
    for (const UnitCost& unit : units) {
      forward += unit.forward();
      input += unit.backward_input();
      weight += unit.backward_weight();
    }
    EXPECT_EQ(sum.parameters, num_parameters(model));
    EXPECT_EQ(sum.forward, forward);
    EXPECT_EQ(sum.backward_input, input);
    EXPECT_EQ(sum.backward_weight, weight);
    EXPECT_EQ(stages[0].parameters, units[0].parameters());
    EXPECT_EQ(stages[2].parameters, 0);
    EXPECT_EQ(stages[2].flops(), Flops{});
  }
}

TEST(StageCut, ATiedTableIsStoredOnceAndLiveWhereItsEndsAre) {
  const ModelSpec tied = gpt2_like();
  const std::int64_t table = tied.vocab * tied.hidden;
  const auto copies = [](const ModelSpec& model, const std::vector<int>& ranks,
                         const WorkShape& shape = shape_of(1, 8)) {
    std::vector<int> begin(ranks.size());
    std::iota(begin.begin() + 1, begin.end(), 0);
    Layers result;
    for (const StageCost& s : stage_costs(model, shape, begin, ranks)) {
      result.push_back(s.live_parameters() - s.parameters);
    }
    return result;
  };
  EXPECT_EQ(copies(tied, {0}), Layers{0});
  EXPECT_EQ(copies(tied, {0, 1}), (Layers{0, table}));
  EXPECT_EQ(copies(tied, {0, 1, 0, 1}), (Layers{0, 0, 0, table}));  // loop
  EXPECT_EQ(copies(tied, {0, 1, 1, 0}), (Layers{0, 0, 0, 0}));      // V
  EXPECT_EQ(copies(llama_like(), {0, 1}), (Layers{0, 0}));
  WorkShape half = shape_of(1, 8);
  half.split = {.degree = 2, .rank = 1};
  EXPECT_EQ(copies(tied, {0, 1}, half), (Layers{0, 125 * tied.hidden}));  // of 251 rows
}

TEST(StageCut, FillsWhatAConfigLeavesOpen) {
  RunConfig config;
  config.model = with(llama_like(), 12, 1024);
  config.training.seq_len = 32;
  config.training.micro_batch = 1;
  config.training.accumulation = 4;
  balance_stages(config);
  EXPECT_TRUE(config.parallel.layers_per_stage.empty());
  config.parallel.pp = 2;
  config.parallel.chunks = 2;
  balance_stages(config);
  EXPECT_EQ(config.parallel.layers_per_stage, cut_of(config.model, 4));
  EXPECT_NE(config.parallel.layers_per_stage, even_layers(12, 4));
  EXPECT_EQ(make_plan(config).stage_begin, first_layers(cut_of(config.model, 4)));
  config.parallel.layers_per_stage = {6, 6, 0, 0};
  balance_stages(config);
  EXPECT_EQ(config.parallel.layers_per_stage, (Layers{6, 6, 0, 0}));
}

}  // namespace
}  // namespace quatrain
