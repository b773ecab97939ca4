// SPDX-License-Identifier: Apache-2.0
// What each rank of a pipeline holds and sends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "quatrain/cost/pipeline_test_support.h"
#include "quatrain/schedule/action_index.h"
#include "quatrain/spec/parameters.h"

namespace quatrain {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> names(const ZeroShape& shape) {
  std::vector<std::string> result;
  for (const ZeroUnit& unit : shape.units) result.push_back(unit.name);
  return result;
}

TEST(PipelineUnits, ATableOfTwoRanksIsAUnitOfItsOwn) {
  const ModelSpec model = with_layers(gpt2_like(), 4);
  auto shapes = shapes_of(model, pipeline_plan(model, 2));
  EXPECT_THAT(names(shapes[0]), ElementsAre("table", "embedding", "layers.0", "layers.1"));
  EXPECT_THAT(names(shapes[1]), ElementsAre("layers.2", "layers.3", "head", "table"));
  shapes = shapes_of(model, pipeline_plan(model, 2, {"interleaved-1f1b", 2}));
  EXPECT_THAT(names(shapes[0]), ElementsAre("table", "embedding", "layers.0", "layers.2"));
  EXPECT_THAT(names(shapes[1]), ElementsAre("layers.1", "layers.3", "head", "table"));
  const ModelSpec llama = tied(with_layers(llama_like(), 4));  // has no learned positions
  shapes = shapes_of(llama, pipeline_plan(llama, 2));
  EXPECT_THAT(names(shapes[0]), ElementsAre("table", "layers.0", "layers.1"));
  EXPECT_THAT(names(shapes[1]), ElementsAre("layers.2", "layers.3", "head", "table"));
}

TEST(PipelineUnits, InAVOneRankHoldsBothEnds) {
  const ModelSpec model = with_layers(gpt2_like(), 4);
  const auto shapes = shapes_of(model, pipeline_plan(model, 2, {"zb-v", 2}));
  EXPECT_THAT(names(shapes[0]), ElementsAre("embedding", "layers.0", "layers.3", "head"));
  EXPECT_THAT(names(shapes[1]), ElementsAre("layers.1", "layers.2"));
  const auto uses = stage_units(model, shapes[0]);
  ASSERT_EQ(uses.size(), 2U);
  EXPECT_THAT(uses[0][0].values, ElementsAre(0));
  EXPECT_THAT(uses[1].back().values, ElementsAre(3, 0));
  EXPECT_THAT(uses[1].back().grads, ElementsAre(3, 0));
}

TEST(PipelineUnits, LayersNameUnitsOfTheirRank) {
  const ModelSpec model = with_layers(gpt2_like(), 4);
  const auto shapes = shapes_of(model, pipeline_plan(model, 2));
  const StageUnits first = stage_units(model, shapes[0]).at(0);
  const StageUnits last = stage_units(model, shapes[1]).at(0);
  ASSERT_EQ(first.size(), 3U);
  ASSERT_EQ(last.size(), 3U);
  EXPECT_THAT(first[0].values, ElementsAre(0, 1));
  EXPECT_FALSE(first[0].input_half_reads);
  EXPECT_THAT(first[2].values, ElementsAre(3));
  EXPECT_TRUE(first[2].input_half_reads);
  EXPECT_FALSE(first[2].grads_in_forward);
  EXPECT_THAT(last[0].values, ElementsAre(0));
  EXPECT_THAT(last[2].values, ElementsAre(2, 3));
  EXPECT_TRUE(last[2].grads_in_forward);
  EXPECT_FALSE(last[2].input_half_reads);
  const auto frozen = shapes_of(model, pipeline_plan(model, 2), {"*.h.2.*", "*wte*"});
  EXPECT_THAT(stage_units(model, frozen[1]).at(0)[0].grads, ElementsAre(0));
  EXPECT_THAT(stage_units(model, frozen[1]).at(0)[1].grads, ElementsAre());
}

// Every parameter is on one rank; a tied table on two, unless one holds both ends.
TEST(PipelineUnits, RanksHoldTheModelBetweenThem) {
  for (const std::int64_t layers : {5, 24}) {
    for (const ModelSpec& model : models_of(layers)) {
      for (const PipelineLayout& layout : kLayouts) {
        for (const int pp : {1, 2, 4}) {
          const Plan plan = pipeline_plan(model, pp, layout);
          std::int64_t sum = 0;
          for (const ZeroShape& shape : shapes_of(model, plan)) {
            for (const ZeroUnit& unit : shape.units) sum += unit.numel();
          }
          const bool copy = model.tied && pp > 1 && layout.schedule != "zb-v";
          EXPECT_EQ(sum, num_parameters(model) + (copy ? model.vocab * model.hidden : 0))
              << model.name << " pp " << pp << " " << layout.schedule;
        }
      }
    }
  }
}

TEST(PipelineUnits, ShardsOfAllRanksAreItsState) {
  const ModelSpec model = with_layers(gpt2_like(), 4);
  for (int zero = 0; zero <= 3; ++zero) {
    Plan plan = pipeline_plan(model, 2, {"interleaved-1f1b", 2});
    degree(plan, Axis::kDpShard) = 3;
    plan.zero_stage = zero;
    const auto rank_of_stage = plan_schedule(plan).rank_of_stage.front();
    std::int64_t params = 0, grads = 0, moments = 0;
    for (int rank = 0; rank < 6; ++rank) {
      const StateBytes state =
          state_bytes(zero_shape(model, plan, {}, rank, rank_of_stage), "adamw", 0.0);
      params += state.params.value;
      grads += state.grads.value;
      moments += state.optimizer.value;
    }
    const std::int64_t all = 4 * (num_parameters(model) + model.vocab * model.hidden);
    EXPECT_EQ(params, zero == 3 ? all : 3 * all);
    EXPECT_EQ(grads, zero >= 2 ? all : 3 * all);
    EXPECT_EQ(moments, zero >= 1 ? 2 * all : 6 * all);
  }
}

TEST(PipelineUnits, AStageMayBeEmpty) {
  const ModelSpec model = with_layers(llama_like(), 1);
  Plan plan = pipeline_plan(model, 4);
  degree(plan, Axis::kDpShard) = 2;
  EXPECT_EQ(plan.stage_begin, (std::vector<int>{0, 1, 1, 1}));
  const auto shapes = shapes_of(model, plan);
  EXPECT_THAT(names(shapes[0]), ElementsAre("embedding", "layers.0"));
  EXPECT_TRUE(shapes[1].units.empty());
  EXPECT_TRUE(shapes[2].units.empty());
  EXPECT_THAT(names(shapes[3]), ElementsAre("head"));
  EXPECT_EQ(state_bytes(shapes[1], "adamw", 0.0).params, Bytes{0});
  const Schedule rows = lowered_schedule(model, plan, {});
  for (const Action& action : rows.per_rank[1]) {
    EXPECT_TRUE(is_message(action.kind) || action.kind == ActionKind::kOptimizerStep)
        << to_string(action);
  }
  const WireCosts sent = step_wire(rows.per_rank[1], model, work_shape(plan, 2), shapes[1]);
  EXPECT_EQ(sent.at("pp").at("send").calls, 2 * 8);
  EXPECT_EQ(sent.size(), 1U);
}

// By rank: what one step sends.
std::vector<WireCosts> sent_by(const ModelSpec& model, const Plan& plan,
                               const std::vector<std::string>& trainable = {}) {
  const Schedule rows = lowered_schedule(model, plan, trainable);
  std::vector<WireCosts> sent;
  for (const ZeroShape& shape : shapes_of(model, plan, trainable)) {
    WorkShape work = work_shape(plan, shape.mesh.rank());
    work.trainable = trainable;
    sent.push_back(step_wire(rows.per_rank[sent.size()], model, work, shape));
  }
  return sent;
}

WireCosts sum(const std::vector<WireCosts>& of_ranks) {
  WireCosts all;
  for (const WireCosts& one : of_ranks) add(all, one);
  return all;
}

TEST(PipelineWire, ALinearPipelineSendsEachMicrobatchOverEachBoundary) {
  const ModelSpec model = with_layers(llama_like(), 4);
  const auto sent = sent_by(model, pipeline_plan(model, 4));
  const std::int64_t message = 2 * 16 * 64 * 4;
  for (std::size_t rank = 0; rank < 4; ++rank) {
    const std::int64_t times = rank == 0 || rank == 3 ? 8 : 16;
    EXPECT_EQ(sent[rank].at("pp").at("send"), (WireCost{times, {times * message}})) << rank;
    EXPECT_EQ(sent[rank].size(), 1U);
  }
}

// m messages each way over each boundary between ranks: p v - 1 of them in a loop, one less in a V,
// whose turn is on one rank.
TEST(PipelineWire, ChunksMultiplyMessages) {
  const std::int64_t m = 8, message = 2 * 16 * 64 * 4;
  for (const ModelSpec& model : models_of(12)) {
    for (const PipelineLayout& layout : kLayouts) {
      for (const std::int64_t pp : {2, 4}) {
        const WireCosts sent =
            sum(sent_by(model, pipeline_plan(model, static_cast<int>(pp), layout)));
        const std::int64_t turns = layout.schedule == "zb-v" ? 1 : 0;
        const std::int64_t times = 2 * m * (pp * layout.chunks - 1 - turns);
        EXPECT_EQ(sent.at("pp").at("send"), (WireCost{times, {times * message}}));
      }
    }
  }
  EXPECT_TRUE(sum(sent_by(llama_like(), pipeline_plan(llama_like(), 1, {"zb-v", 2}))).empty());
}

TEST(PipelineWire, UnderSequenceParallelismARankSendsItsRows) {
  const ModelSpec model = with_layers(llama_like(), 4);
  for (const int seq : {16, 15}) {
    Plan plan = pipeline_plan(model, 2);
    degree(plan, Axis::kTp) = 2;
    plan.microbatch_size = 1;
    plan.seq_len = seq;
    EXPECT_EQ(sent_by(model, plan)[0].at("pp").at("send").bytes, Bytes{8 * seq * 64 * 4});
    plan.sequence_parallel = true;
    plan.dtype = Dtype::kBFloat16;
    EXPECT_EQ(sent_by(model, plan)[0].at("pp").at("send").bytes, Bytes{8 * 8 * 64 * 2});
  }
}

// Each layer sends over tp what it sends in one stage.
TEST(PipelineWire, LayersSendTheSameOnWhicheverRank) {
  for (const bool sequence_parallel : {false, true}) {
    for (const ModelSpec& model : models_of(6)) {
      const auto tensor = [&](int pp, const PipelineLayout& layout) {
        Plan plan = pipeline_plan(model, pp, layout);
        degree(plan, Axis::kTp) = 2;
        plan.sequence_parallel = sequence_parallel;
        const Schedule rows = lowered_schedule(model, plan, {});
        WireCosts all;
        for (const ZeroShape& shape : shapes_of(model, plan)) {
          const auto rank = static_cast<std::size_t>(shape.mesh.coord(Axis::kPp));
          add(all, tensor_wire(rows.per_rank[rank], model, work_shape(plan, shape.mesh.rank()),
                               shape.stages));
        }
        return all;
      };
      const WireCosts want = tensor(1, {});
      for (const PipelineLayout& layout : kLayouts) EXPECT_EQ(tensor(2, layout), want);
      EXPECT_FALSE(want.empty());
    }
  }
}

TEST(PipelineWire, DataRanksReduceTheSameUnits) {
  const ModelSpec model = with_layers(llama_like(), 6);
  for (int zero = 0; zero <= 2; ++zero) {
    const auto data = [&](int pp, const PipelineLayout& layout) {
      Plan plan = pipeline_plan(model, pp, layout);
      degree(plan, Axis::kDpShard) = 2;
      plan.zero_stage = zero;
      return sum(sent_by(model, plan)).at("dp");
    };
    for (const PipelineLayout& layout : kLayouts) EXPECT_EQ(data(2, layout), data(1, {}));
  }
}

// Both ranks of a table sum this rank's piece of its gradient, once a step and wide.
TEST(PipelineWire, CopiesOfATableAreSummedPieceByPiece) {
  const ModelSpec model = with_layers(gpt2_like(), 4);
  const std::int64_t table = 251 * 64;
  for (int zero = 0; zero <= 3; ++zero) {
    for (const int shards : {1, 2}) {
      Plan plan = pipeline_plan(model, 4);
      plan.dtype = Dtype::kBFloat16;
      plan.zero_stage = zero;
      degree(plan, Axis::kDpShard) = shards;
      const auto sent = sent_by(model, plan);
      const std::int64_t piece = zero == 0 || shards == 1 ? table : 125 * 64;  // of 251 rows
      for (const std::size_t rank : {0, 3}) {
        EXPECT_EQ(sent[rank].at("pp").at("all_reduce"), (WireCost{1, {2 * (piece / 2) * 4}}));
      }
      EXPECT_FALSE(sent[1].at("pp").contains("all_reduce"));
      EXPECT_FALSE(sent_by(model, plan, {"*.h.*"})[0].at("pp").contains("all_reduce"));
    }
  }
}

}  // namespace
}  // namespace quatrain
