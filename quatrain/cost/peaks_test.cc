// SPDX-License-Identifier: Apache-2.0
// Peaks of rows: short ones walked by hand, and every schedule's against its count of activations.
#include "quatrain/cost/peaks.h"

#include <gtest/gtest.h>

#include <sstream>

#include "quatrain/cost/pipeline_test_support.h"
#include "quatrain/schedule/clock.h"

namespace quatrain {
namespace {

std::vector<Action> row_of(const std::string& text) {
  std::vector<Action> row;
  std::istringstream words(text);
  for (std::string word; words >> word;) row.push_back(parse_action(word));
  return row;
}

// A model of four blocks on ranks that hold `blocks` of them each, a stage a rank.
struct Case {
  explicit Case(const std::vector<std::int64_t>& blocks) {
    plan = pipeline_plan(model, static_cast<int>(blocks.size()));
    plan.stage_begin = first_layers(blocks);
    units = walk(model, halves());
  }
  WorkShape halves() const {
    WorkShape work = work_shape(plan, 0);
    work.fused_backward = false;
    return work;
  }
  RowPeaks peaks(int rank, const std::string& row) const {
    std::vector<int> rank_of_stage(plan.stage_begin.size());
    for (std::size_t s = 0; s < rank_of_stage.size(); ++s) rank_of_stage[s] = static_cast<int>(s);
    const ZeroShape shape = zero_shape(model, plan, {}, rank, rank_of_stage);
    return row_peaks(row_of(row), shape, model, work_shape(plan, rank));
  }
  ModelSpec model = with_layers(llama_like(), 4);
  Plan plan;
  std::vector<UnitCost> units;
  std::int64_t message = 2 * 16 * 64 * 4;
  std::int64_t logits = 2 * 16 * 251 * 4;
};

TEST(RowPeaks, StashesOfMicrobatchesAddUp) {
  const Case two({2, 2});
  const std::int64_t block = two.units[1].stash().value;
  const std::int64_t rest = two.units[1].weight_stash().value;
  const std::int64_t embedding = two.units[0].weight_stash().value;
  const std::int64_t head = two.units[5].stash().value;
  EXPECT_EQ(two.units[0].stash(), Bytes{0});
  EXPECT_EQ(two.units[5].weight_stash(), Bytes{0});
  EXPECT_EQ(two.peaks(0, "0F0 0F1 0B0 0B1").activations.value, 4 * block);
  EXPECT_EQ(two.peaks(0, "0F0 0B0 0F1 0B1").activations.value, 2 * block);
  EXPECT_EQ(two.peaks(1, "1F0 1B0 1F1 1B1").activations.value, 2 * block + head);
  // Weight halves later: what they need stays, the embedding's gradient among it.
  EXPECT_EQ(two.peaks(0, "0F0 0I0 0F1 0W0 0I1 0W1").activations.value,
            std::max(2 * rest + embedding + 2 * block, 2 * block));
  // Layer by layer, each half at a time.
  EXPECT_EQ(two.peaks(0, "0F0.0 0F0.1 0F0.2 0I0.2 0W0.2 0I0.1 0W0.1 0I0.0 0W0.0").activations.value,
            std::max(2 * block, block + rest));
}

TEST(RowPeaks, ReceivedTensorsWaitInSlots) {
  const Case two({2, 2});
  const std::int64_t message = two.message, logits = two.logits;
  // The block takes its input when its forward begins: one slot is left when the head runs.
  RowPeaks peaks = two.peaks(1, "1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1");
  EXPECT_EQ(peaks.slots.value, 2 * message);
  EXPECT_EQ(peaks.logits.value, logits);
  EXPECT_EQ(peaks.buffers.value, std::max(2 * message, message + logits));
  EXPECT_EQ(peaks.gathered.value, 0);
  // A gradient waits until its input half.
  peaks = two.peaks(0, "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0RECV_B1 0B0 0B1");
  EXPECT_EQ(peaks.slots.value, 2 * message);
  peaks = two.peaks(0, "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0I0 0RECV_B1 0I1 0W0 0W1");
  EXPECT_EQ(peaks.slots.value, message);
  EXPECT_EQ(peaks.buffers.value, message);
  // By layer: the gradient is taken by the last layer, the first in the backward.
  peaks = two.peaks(0, "0F0.0 0F0.1 0F0.2 0SEND_F0 0RECV_B0 0I0.2 0W0.2 0RECV_B1 0I0.1 0W0.1");
  EXPECT_EQ(peaks.slots.value, message);
}

// A head has no block input: what it reads is there until its forward ends.
TEST(RowPeaks, AHeadAloneKeepsItsSlot) {
  const Case two({4, 0});
  const RowPeaks peaks = two.peaks(1, "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1");
  EXPECT_EQ(peaks.slots.value, two.message);
  EXPECT_EQ(peaks.buffers.value, two.message + two.logits);
  EXPECT_EQ(peaks.activations, two.units[5].stash());
}

TEST(RowPeaks, AnEmptyStagePassesOn) {
  const Case three({2, 0, 2});
  const std::string row =
      "1RECV_F0 1RECV_F1 1F0 1SEND_F0 1F1 1SEND_F1 1RECV_B0 1B0 1SEND_B0 "
      "1RECV_B1 1B1 1SEND_B1";
  const RowPeaks peaks = three.peaks(1, row);
  EXPECT_EQ(peaks.slots.value, 2 * three.message);
  EXPECT_EQ(peaks.buffers.value, 2 * three.message);
  EXPECT_EQ(peaks.activations.value, 0);
}

// The turn of a V: stage 1 is empty and hands what it received to stage 2, on the same rank.
TEST(RowPeaks, AnEmptyStageHandsItsSlotOn) {
  const Case four({2, 0, 1, 1});
  const ZeroShape shape = zero_shape(four.model,
                                     [&] {
                                       Plan plan = four.plan;
                                       degree(plan, Axis::kPp) = 2;
                                       return plan;
                                     }(),
                                     {}, 1, {0, 1, 1, 0});
  const RowPeaks peaks = row_peaks(row_of("1RECV_F0 1F0 2F0 2SEND_F0 1RECV_F1 1F1 2F1 2SEND_F1 "
                                          "2RECV_B0 2B0 1B0 1SEND_B0 2RECV_B1 2B1 1B1 1SEND_B1"),
                                   shape, four.model, work_shape(four.plan, 0));
  EXPECT_EQ(peaks.slots.value, four.message);
  EXPECT_EQ(peaks.activations.value, 2 * four.units[1].stash().value);
}

// [stage] what each action of a whole stage adds, in bytes.
std::vector<StashDeltas> deltas_of(const ModelSpec& model, const Plan& plan) {
  WorkShape work = work_shape(plan, 0);
  work.fused_backward = false;
  const std::vector<UnitCost> units = walk(model, work);
  std::vector<StashDeltas> deltas;
  for (const StageLayers& stage : stage_layers(model.layers, plan.stage_begin)) {
    std::int64_t whole = 0, rest = 0;
    for (int layer = stage.begin; layer < stage.end; ++layer) {
      whole += units[static_cast<std::size_t>(layer)].stash().value;
      rest += units[static_cast<std::size_t>(layer)].weight_stash().value;
    }
    deltas.push_back({static_cast<double>(whole), static_cast<double>(rest - whole),
                      static_cast<double>(-rest)});
  }
  return deltas;
}

std::vector<double> activations_of(const ModelSpec& model, const Plan& plan) {
  const Schedule rows = lowered_schedule(model, plan, {});
  std::vector<double> bytes;
  for (const ZeroShape& shape : shapes_of(model, plan)) {
    const RowPeaks peaks =
        row_peaks(rows.per_rank[bytes.size()], shape, model, work_shape(plan, shape.mesh.rank()));
    bytes.push_back(static_cast<double>(peaks.activations.value));
  }
  return bytes;
}

std::vector<PipelineLayout> all_schedules() {
  std::vector<PipelineLayout> all;
  for (const ScheduleInfo& info : schedule_table()) {
    if (info.placement == StagePlacement::kDual) continue;
    all.push_back(
        {std::string(info.name), std::max(info.min_chunks, std::min(info.max_chunks, 2))});
  }
  return all;
}

// Between whole stages' actions the bytes are those of the schedule's count; an uneven cut weighs
// each stage by its own.
TEST(RowPeaks, EveryScheduleKeepsWhatItsCountSays) {
  for (const ModelSpec& model : models_of(17)) {
    for (const PipelineLayout& layout : all_schedules()) {
      for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
        Plan plan = pipeline_plan(model, 4, layout);
        plan.recompute = recompute;
        EXPECT_EQ(activations_of(model, plan),
                  peak_stash(lowered_schedule(model, plan, {}), deltas_of(model, plan)))
            << layout.schedule;
      }
    }
  }
}

// Uniform stages and fused backwards: a closed form's activations, each of a chunk's bytes, on
// ranks that hold neither end.
TEST(RowPeaks, case_161_UniformStagesKeepTheClosedForm) {
  const ModelSpec model = with_layers(llama_like(), 8);
  for (const int m : {2, 4, 8, 13}) {
    for (const char* name : {"gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b", "looped-bfs"}) {
      const bool loop = std::string_view(name).find('-') != std::string_view::npos &&
                        std::string_view(name) != "eager-1f1b";
      Plan plan = pipeline_plan(model, 4, {name, loop ? 2 : 1}, m);
      const std::vector<double> count = peak_stash(plan_schedule(plan));
      const double chunk = deltas_of(model, plan)[1].forward;
      const std::vector<double> bytes = activations_of(model, plan);
      for (const std::size_t rank : {1, 2}) EXPECT_EQ(bytes[rank], chunk * count[rank]) << name;
    }
    const auto one_f_one_b_peaks = activations_of(model, pipeline_plan(model, 4, {}, m));
    const double chunk = deltas_of(model, pipeline_plan(model, 4, {}, m))[1].forward;
    EXPECT_EQ(one_f_one_b_peaks[0], chunk * std::min(m, 4));
    EXPECT_EQ(one_f_one_b_peaks[1], chunk * std::min(m, 3));
  }
}

// Under ZeRO 3, units and slots share the peak.
TEST(RowPeaks, GatheredUnitsStandBesideSlots) {
  const ModelSpec model = with_layers(llama_like(), 4);
  Plan plan = pipeline_plan(model, 2);
  degree(plan, Axis::kDpShard) = 2;
  plan.zero_stage = 3;
  const ZeroShape shape = zero_shape(model, plan, {}, 2, {0, 1});  // layers.2, layers.3, head
  const std::int64_t block = 4 * shape.units[0].numel();
  const RowPeaks peaks =
      row_peaks(row_of("1RECV_F0 1UNSHARD.0 1RECV_F1 1UNSHARD.1 1F0.0 1RESHARD.0 1F0.1 1RESHARD.1"),
                shape, model, work_shape(plan, 2));
  EXPECT_EQ(peaks.gathered.value, 2 * block);
  EXPECT_EQ(peaks.slots.value, 2 * 2 * 16 * 64 * 4);
  EXPECT_EQ(peaks.buffers, peaks.gathered + peaks.slots);
}

}  // namespace
}  // namespace quatrain
