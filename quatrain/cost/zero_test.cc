// SPDX-License-Identifier: Apache-2.0
// ZeRO's published numbers, and formulas that hold for every model.
#include "quatrain/cost/zero.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quatrain/cost/lower.h"
#include "quatrain/cost/peaks.h"
#include "quatrain/cost/walk.h"
#include "quatrain/spec/parameters.h"

namespace quatrain {
namespace {

// Every row divides by 8 ranks, so that pieces are even but for the cuts' rounding to rows.
ModelSpec even_model(std::int64_t layers = 3) {
  ModelSpec m;
  m.name = "even";
  m.vocab = 512;
  m.hidden = 128;
  m.layers = layers;
  m.heads = m.kv_heads = 8;
  m.head_dim = 16;
  m.ffn = 256;
  m.max_positions = 64;
  return m;
}

Plan plan_of(int zero_stage, int shards, int replicas = 1, Dtype dtype = Dtype::kBFloat16) {
  Plan plan;
  plan.degrees[static_cast<std::size_t>(Axis::kDpShard)] = shards;
  plan.degrees[static_cast<std::size_t>(Axis::kDpReplicate)] = replicas;
  plan.zero_stage = zero_stage;
  plan.dtype = dtype;
  plan.schedule = "1f1b";
  return plan;
}

std::int64_t bytes_of(const WireCosts& costs, const std::string& group, const std::string& what) {
  const auto found = costs.find(group);
  if (found == costs.end() || !found->second.contains(what)) return 0;
  return found->second.at(what).bytes.value;
}

WireCosts wire_of(const ModelSpec& model, const Plan& plan, int rank = 0) {
  const Schedule schedule = lowered_schedule(model, plan, {});
  return zero_wire(schedule.per_rank[0], zero_shape(model, plan, {}, rank));
}

// Rajbhandari et al., figure 1: 7.5 billion parameters on 64 ranks, 2 + 2 + 12 bytes.
TEST(Zero, ThePaperBytesOfSevenAndAHalfBillion) {
  const BytesPerParameter paper{.value = 2, .grad = 2, .optimizer = 12};
  const double gb[] = {120.0, 31.4, 16.6, 1.9};
  for (int stage = 0; stage < 4; ++stage) {
    EXPECT_NEAR(even_zero_bytes(7.5e9, 64, stage, paper) / 1e9, gb[stage], 0.05) << stage;
  }
}

// bf16 values, fp32 gradients, masters and moments: 18, 6 + 12/n, 2 + 16/n and 18/n bytes.
TEST(Zero, StateBytesAreTheFormulasWhereRowsAreEven) {
  const ModelSpec model = even_model();
  const auto psi = static_cast<double>(num_parameters(model));
  for (const int n : {1, 2, 4, 8}) {
    const double want[] = {18.0 * psi, (6.0 + 12.0 / n) * psi, (2.0 + 16.0 / n) * psi,
                           18.0 * psi / n};
    for (int stage = 0; stage < 4; ++stage) {
      double sum = 0.0;
      for (int rank = 0; rank < n; ++rank) {
        const StateBytes state =
            state_bytes(zero_shape(model, plan_of(stage, n), {}, rank), "adamw", 0.0);
        const auto bytes =
            static_cast<double>(state.params.value + state.grads.value + state.optimizer.value);
        EXPECT_NEAR(bytes / want[stage], 1.0, 0.02) << "stage " << stage << " rank " << rank;
        sum += bytes;
      }
      EXPECT_DOUBLE_EQ(sum, want[stage] * n) << "stage " << stage << " of " << n;
      EXPECT_DOUBLE_EQ(want[stage], even_zero_bytes(psi, n, stage, {}));
    }
  }
}

// Stages 0, 1 and 2 send 2 Psi (n-1)/n elements a step: a reduction and a gather, or one
// all_reduce. Here pieces are cut at rows of 128 elements, so the padding is small and known.
TEST(Zero, StagesUpToTwoSendTwicePsi) {
  const ModelSpec model = even_model();
  const auto psi = static_cast<double>(num_parameters(model));
  for (const int n : {2, 4, 8}) {
    for (int stage = 0; stage < 3; ++stage) {
      const WireCosts costs = wire_of(model, plan_of(stage, n, 1, Dtype::kFloat32));
      std::int64_t elements = 0;
      for (const char* operation : {"all_reduce", "all_gather", "reduce_scatter"}) {
        elements += bytes_of(costs, "dp", operation) / 4;
      }
      EXPECT_NEAR(static_cast<double>(elements) / (2.0 * psi * (n - 1) / n), 1.0, 0.03)
          << "stage " << stage << " of " << n;
      EXPECT_GE(static_cast<double>(elements), 2.0 * psi * (n - 1) / n);
    }
  }
}

// Stage 3: a gather for each half of a block, one for the embedding and the head, one reduction.
TEST(Zero, StageThreeSendsLessThanThreePsi) {
  const ModelSpec model = even_model();
  const int n = 4;
  const Plan plan = plan_of(3, n, 1, Dtype::kFloat32);
  const std::vector<ZeroUnit> units = zero_shape(model, plan, {}, 0).units;
  std::int64_t gathers = 0;
  std::int64_t reduces = 0;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const auto& pieces = units[u].value_pieces;
    const std::int64_t sent = (n - 1) * *std::max_element(pieces.begin(), pieces.end());
    const bool once = u == 0 || u + 1 == units.size();
    gathers += (once ? 1 : 2) * sent;
    reduces += sent;
  }
  const WireCosts costs = wire_of(model, plan);
  EXPECT_EQ(bytes_of(costs, "dp", "all_gather"), 4 * gathers);
  EXPECT_EQ(bytes_of(costs, "dp", "reduce_scatter"), 4 * reduces);
  const auto psi = static_cast<double>(num_parameters(model));
  EXPECT_LT(static_cast<double>(gathers + reduces), 1.03 * 3.0 * psi * (n - 1) / n);
}

TEST(Zero, ReplicasSumShardsOnce) {
  const WireCosts costs = wire_of(even_model(), plan_of(2, 2, 4, Dtype::kFloat32), 3);
  EXPECT_EQ(costs.at("dp_replicate").at("all_reduce").calls, 5);  // units
  EXPECT_EQ(costs.at("dp_shard").at("reduce_scatter").calls, 5);
  EXPECT_EQ(costs.at("dp_shard").at("all_gather").calls, 5);
}

// Cases 085, 086: what lives for a while does not grow with depth.
TEST(Zero, case_086_PeaksDoNotDependOnDepth) {
  const auto peaks = [](std::int64_t layers, int stage) {
    const ModelSpec model = even_model(layers);
    const Plan plan = plan_of(stage, 4);
    const ZeroShape shape = zero_shape(model, plan, {}, 0);
    const Schedule schedule = lowered_schedule(model, plan, {});
    return row_peaks(schedule.per_rank[0], shape, model, work_shape(plan, 0));
  };
  for (const int stage : {2, 3}) {
    EXPECT_EQ(peaks(2, stage).buffers.value, peaks(9, stage).buffers.value);
    EXPECT_EQ(peaks(2, stage).whole_grads.value, peaks(9, stage).whole_grads.value);
  }
  // One whole gradient at a time: the largest unit's. Two gathered units: the largest neighbours.
  const std::vector<ZeroUnit> units = zero_shape(even_model(9), {}, {}, 0).units;
  std::int64_t largest = 0;
  for (const ZeroUnit& unit : units) largest = std::max(largest, unit.numel());
  EXPECT_EQ(peaks(9, 2).whole_grads.value, 4 * largest);
  EXPECT_EQ(peaks(9, 3).whole_grads.value, 4 * largest);
  EXPECT_EQ(peaks(9, 2).buffers.value, 0);
  EXPECT_EQ(peaks(9, 3).buffers.value, 2 * (units[1].numel() + units[2].numel()));
}

}  // namespace
}  // namespace quatrain
