// SPDX-License-Identifier: Apache-2.0
// The walk against formulas written out by hand.
#include "quatrain/cost/walk.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "quatrain/base/error.h"
#include "quatrain/cost/test_models.h"
#include "quatrain/cost/zero.h"
#include "quatrain/spec/model_io.h"
#include "quatrain/spec/parameters.h"

namespace quatrain {
namespace {

Flops all_passes(const std::vector<UnitCost>& units) {
  Flops total{};
  for (const UnitCost& u : units) {
    total += u.forward() + u.backward_input() + u.backward_weight();
  }
  return total;
}

std::int64_t late_bytes(const UnitCost& unit, std::string_view what) {
  for (const OpCost& op : unit.ops) {
    for (const LateStashCost& row : op.late) {
      if (row.what == what) return row.bytes.value;
    }
  }
  return 0;
}
std::int64_t stash_bytes(const UnitCost& unit, std::string_view what) {
  for (const OpCost& op : unit.ops) {
    for (const StashCost& row : op.stash) {
      if (row.what == what) return row.bytes.value;
    }
  }
  return 0;
}

TEST(Walk, CountsEveryParameterOnce) {
  for (ModelSpec m : {llama_like(), gpt2_like(), qwen2_like(), qwen3_like()}) {
    for (bool tied : {false, true}) {
      m.tied = tied;
      std::int64_t sum = 0;
      for (const UnitCost& u : walk(m, shape_of(1, 8))) sum += u.parameters();
      EXPECT_EQ(sum, num_parameters(m));
    }
  }
}

// Forward of a block: 2 N (D (H + 2K) d + H d D + 3 D F) + 4 d H pairs; the head 2 N D V.
TEST(Walk, case_145_FlopsFollowHeadCountsAndFfnWidth) {
  const ModelSpec m = llama_like();  // kv 2 of q 8, ffn != 4 D
  const std::int64_t B = 3, T = 16, N = B * T, D = 64, V = 251, F = 176, d = 8, H = 8, K = 2;
  const std::int64_t pairs = B * T * (T + 1) / 2;
  const std::int64_t gemms = 2 * N * (D * (H + 2 * K) * d + H * d * D + 3 * D * F);
  const std::int64_t attention = 4 * d * H * pairs;
  const std::int64_t logits = 2 * N * D * V;
  const std::vector<UnitCost> units = walk(m, shape_of(B, T));
  ASSERT_EQ(units.size(), 5U);
  EXPECT_EQ(units[1].forward().value, static_cast<double>(gemms + attention));
  EXPECT_EQ(units[1].backward_input().value, static_cast<double>(gemms + 2 * attention));
  EXPECT_EQ(units[1].backward_weight().value, static_cast<double>(gemms));
  EXPECT_EQ(units[0].forward().value, 0.0);
  EXPECT_EQ(units[4].forward().value, static_cast<double>(logits));
  const double step = static_cast<double>(3 * (3 * gemms + 3 * attention) + 3 * logits);
  EXPECT_EQ(all_passes(units).value, step);
  // Accumulation is a matter of how many sequences a step has, not of how they are cut.
  EXPECT_EQ(model_flops(m, B, T).value, step);
  EXPECT_EQ(model_flops(m, 4 * B, T).value, 4 * step);
  EXPECT_DOUBLE_EQ(mfu({step}, {0.5}, {4 * step}), 0.5);
}

TEST(Walk, WindowsLimitTheVisiblePairs) {
  ModelSpec m = llama_like();
  m.window = 4;
  m.window_layers = {true, false, true};
  const std::vector<UnitCost> units = walk(m, shape_of(2, 10));
  const auto attention = [&](std::size_t unit) { return units[unit].ops[2].forward.value; };
  const double per_pair = 4.0 * 8 * 8;
  EXPECT_EQ(attention(1), 2 * (1 + 2 + 3 + 7 * 4) * per_pair);
  EXPECT_EQ(attention(2), 2 * 55 * per_pair);
}

// All but what makes the result.
TEST(Walk, FullRecomputeRunsTheForwardAgainAndKeepsTheInput) {
  const ModelSpec m = qwen3_like();
  WorkShape shape = shape_of(2, 8);
  const UnitCost plain = walk(m, shape)[1];
  shape.recompute = Recompute::kFull;
  const UnitCost full = walk(m, shape)[1];
  const Flops down = std::ranges::find(plain.ops, "down", &OpCost::name)->forward;
  EXPECT_GT(down.value, 0);
  EXPECT_EQ(full.backward_input(), plain.backward_input() + plain.forward() - down);
  EXPECT_EQ(full.backward_weight(), plain.backward_weight());
  EXPECT_EQ(full.stash().value, 2 * 8 * 64 * 4);
  EXPECT_EQ(full.weight_stash(), plain.weight_stash());
}

TEST(Walk, SelectiveKeepsNoNormOutputs) {
  for (const ModelSpec& m : {gpt2_like(), qwen3_like()}) {
    WorkShape shape = shape_of(2, 8);
    const UnitCost plain = walk(m, shape)[1];
    shape.recompute = Recompute::kSelective;
    const UnitCost selective = walk(m, shape)[1];
    EXPECT_EQ((plain.stash() - selective.stash()).value, 2 * 2 * 8 * 64 * 4);
    EXPECT_EQ(selective.weight_stash(), plain.weight_stash());
    EXPECT_EQ(selective.backward_input(), plain.backward_input());
  }
}

TEST(Walk, StashOfASwiGluBlockWithQkNorm) {
  const ModelSpec m = qwen3_like();
  const std::int64_t B = 2, T = 8, N = B * T, D = 64, F = 176, H = 8, K = 2, d = 16;
  WorkShape shape = shape_of(B, T);
  shape.dtype = Dtype::kBFloat16;
  const UnitCost u = walk(m, shape)[1];
  const std::int64_t narrow =
      4 * N * D + N * (H + 2 * K) * d + N * (H + K) * d + N * H * d + N * 2 * F;
  const std::int64_t wide = 2 * N + N * (H + K) + B * H * T;
  EXPECT_EQ(u.stash().value, 2 * narrow + 4 * wide);
  const std::int64_t late = N * (H + 2 * K) * d + 2 * N * D + N * F + N * 2 * F;
  const std::int64_t gains = 2 * B * D + B * 2 * d;
  EXPECT_EQ(u.weight_stash().value, 2 * (2 * N * D + N * H * d + late) + 4 * gains);
}

TEST(Walk, StashOfAGeluBlockWithLayerNorm) {
  const std::int64_t B = 2, T = 8, N = B * T, D = 64, F = 176, H = 8;
  const UnitCost u = walk(gpt2_like(), shape_of(B, T))[1];
  EXPECT_EQ(u.stash().value, 4 * (4 * N * D + 3 * N * D + N * D + N * F + 4 * N + B * H * T));
  EXPECT_EQ(u.weight_stash().value,
            4 * (3 * N * D + 3 * N * D + 2 * N * D + 2 * N * F + 4 * B * D));
}

TEST(Walk, FrozenParametersTakeWeightWorkAndRowsAway) {
  const ModelSpec m = qwen2_like();
  WorkShape shape = shape_of(2, 8);
  const UnitCost all = walk(m, shape)[1];
  shape.trainable = {"*.q_proj.weight", "*.down_proj.weight"};
  const std::vector<UnitCost> units = walk(m, shape);
  const UnitCost& some = units[1];
  EXPECT_EQ(some.forward(), all.forward());
  EXPECT_EQ(some.backward_input(), all.backward_input());
  EXPECT_EQ(some.backward_weight().value, 2.0 * 16 * (64 * 64 + 64 * 176));
  EXPECT_GT(late_bytes(some, "attn.dqkv"), 0);
  EXPECT_GT(stash_bytes(some, "norm1.y"), 0);
  EXPECT_GT(late_bytes(some, "mlp.act"), 0);
  for (const char* what : {"norm1.dgain", "norm2.dgain", "attn.dy", "mlp.dpre"}) {
    EXPECT_GT(late_bytes(all, what), 0) << what;
    EXPECT_EQ(late_bytes(some, what), 0) << what;
  }
  EXPECT_EQ(stash_bytes(some, "norm2.y"), 0);
  EXPECT_EQ(units.front().weight_stash().value, 0);
  EXPECT_EQ(units.back().backward_weight().value, 0.0);
  shape.trainable = {"*.nothing"};
  EXPECT_THROW(walk(m, shape), ConfigError);
}

// DeepSeek-V3 (arXiv:2412.19437, section 4.2): 671 B parameters, 37 B of them active: forward FLOPs
// of a token are twice the active matrices', attention's pairs aside.
TEST(Walk, DeepseekComputesWithItsActiveParameters) {
  const ModelSpec m = catalog_model("deepseek-v3").spec;
  const WorkShape shape = shape_of(1, 1);
  double forward = 0.0;
  std::int64_t parameters = 0;
  for (const UnitCost& unit : walk(m, shape)) {
    forward += unit.forward().value;
    parameters += unit.parameters();
  }
  EXPECT_EQ(parameters, num_parameters(m));
  EXPECT_NEAR(forward / 2.0, 36.7e9, 0.2e9);  // 37.6 B less the embedding's rows
}

// Korthikanti et al., section 4.1: attention 11 s b h + 5 a s^2 b, MLP 19 s b h, norms 4 s b h.
TEST(Korthikanti, Equation2) {
  const std::int64_t s = 2048, b = 2, h = 12288, a = 96;
  std::int64_t attention = 0, mlp = 0, norms = 0;
  for (const OpCost& op : korthikanti_layer(s, b, h, a, {})) {
    std::int64_t bytes = 0;
    for (const StashCost& row : op.stash) bytes += row.bytes.value;
    const bool norm = op.name == "norm1" || op.name == "norm2";
    (norm ? norms : op.name == "up" || op.name == "down" ? mlp : attention) += bytes;
  }
  EXPECT_EQ(attention, 11 * s * b * h + 5 * a * s * s * b);
  EXPECT_EQ(mlp, 19 * s * b * h);
  EXPECT_EQ(norms, 4 * s * b * h);
  EXPECT_EQ(korthikanti_layer_bytes(s, b, h, a, {}).value, 34 * s * b * h + 5 * a * s * s * b);
  EXPECT_EQ(5 * a * s / h, 80);
  PaperAssumptions no_scores;
  no_scores.scores_stored = false;
  EXPECT_EQ(korthikanti_layer_bytes(s, b, h, a, no_scores).value, 34 * s * b * h);
  no_scores.masks_stored = false;
  EXPECT_EQ(korthikanti_layer_bytes(s, b, h, a, no_scores).value, 32 * s * b * h);
}

TEST(StateBytes, MastersAndMoments) {
  const ModelSpec m = llama_like();
  const std::int64_t n = num_parameters(m);
  Plan plan;
  StateBytes bytes = state_bytes(zero_shape(m, plan, {}, 0), "adamw", 0.0);
  EXPECT_EQ(bytes.params.value, 4 * n);
  EXPECT_EQ(bytes.grads.value, 4 * n);
  EXPECT_EQ(bytes.optimizer.value, 8 * n);
  plan.dtype = Dtype::kBFloat16;
  bytes = state_bytes(zero_shape(m, plan, {}, 0), "adamw", 0.0);  // 2 + 4 + 12 a parameter
  EXPECT_EQ(bytes.params.value, 2 * n);
  EXPECT_EQ(bytes.grads.value, 4 * n);
  EXPECT_EQ(bytes.optimizer.value, 12 * n);
  EXPECT_EQ(state_bytes(zero_shape(m, plan, {}, 0), "sgd", 0.0).optimizer.value, 4 * n);
  EXPECT_EQ(state_bytes(zero_shape(m, plan, {}, 0), "sgd", 0.9).optimizer.value, 8 * n);
  bytes = state_bytes(zero_shape(m, plan, {"lm_head.weight"}, 0), "adamw", 0.0);
  EXPECT_EQ(bytes.params.value, 2 * n);
  EXPECT_EQ(bytes.grads.value, 4 * 251 * 64);
  EXPECT_EQ(bytes.optimizer.value, 12 * 251 * 64);
}

}  // namespace
}  // namespace quatrain
