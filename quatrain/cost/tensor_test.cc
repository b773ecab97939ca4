// SPDX-License-Identifier: Apache-2.0
// Tensor and sequence parallelism: one rank's work, stash and wire against formulas written out by
// hand, and the published ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "quatrain/base/error.h"
#include "quatrain/cost/local.h"
#include "quatrain/cost/lower.h"
#include "quatrain/cost/test_models.h"
#include "quatrain/cost/zero.h"
#include "quatrain/spec/parameters.h"

namespace quatrain {
namespace {

using enum ActionKind;
using enum CollectiveKind;

WorkShape cut(WorkShape shape, int degree, int rank = 0, bool sequence_parallel = false) {
  shape.split = {degree, rank, sequence_parallel};
  return shape;
}

std::vector<ModelSpec> families() {
  return {gpt2_like(), llama_like(), qwen2_like(), qwen3_like()};
}

// Uneven everywhere: 12 heads allow tp 2, 3 and 4.
ModelSpec uneven_model() {
  ModelSpec m = llama_like();
  m.heads = 12;
  m.kv_heads = 12;
  m.ffn = 129;
  return m;
}

OpCost op_of(const UnitCost& unit, std::string_view name) {
  for (const OpCost& op : unit.ops) {
    if (op.name == name) return op;
  }
  ADD_FAILURE() << name;
  return {};
}

std::map<std::string, std::int64_t> late_rows(const UnitCost& unit) {
  std::map<std::string, std::int64_t> rows;
  for (const OpCost& op : unit.ops) {
    for (const LateStashCost& row : op.late) rows[row.what] = row.bytes.value;
  }
  return rows;
}
std::map<std::string, std::int64_t> stash_rows(const UnitCost& unit) {
  std::map<std::string, std::int64_t> rows;
  for (const OpCost& op : unit.ops) {
    for (const StashCost& row : op.stash) rows[row.what] = row.bytes.value;
  }
  return rows;
}

// What a unit's pass sends in collectives of one kind.
WireCost sent(const UnitCost& unit, ActionKind pass, CollectiveKind kind) {
  WireCost total;
  for (const OpWire& wire : unit.wire(pass)) {
    if (wire.operation == kind) total += {wire.calls, wire.bytes};
  }
  return total;
}
WireCost sent(const UnitCost& unit, CollectiveKind kind) {
  WireCost total;
  for (const ActionKind pass : {kForward, kBackwardInput, kBackwardWeight}) {
    total += sent(unit, pass, kind);
  }
  return total;
}
std::int64_t calls(const UnitCost& unit, ActionKind pass, CollectiveKind kind) {
  return sent(unit, pass, kind).calls;
}

TEST(Tensor, OneRankSendsNothing) {
  for (const ModelSpec& m : families()) {
    for (const UnitCost& unit : walk(m, shape_of(2, 8))) {
      for (const OpCost& op : unit.ops) EXPECT_TRUE(op.wire.empty()) << op.name;
    }
  }
}

TEST(Tensor, ParametersAreThoseThatARankHolds) {
  for (const ModelSpec& m : families()) {
    for (const int degree : {2, 4, 8}) {
      std::int64_t sum = 0;
      std::int64_t held = 0;
      for (int rank = 0; rank < degree; ++rank) {
        for (const UnitCost& u : walk(m, cut(shape_of(1, 8), degree, rank))) sum += u.parameters();
        for (const LocalParameter& p : local_parameters(m, {degree, rank, false})) {
          held += p.box.numel();
          if (p.info.name.ends_with("k_proj.weight")) {
            EXPECT_EQ(p.shape()[0], local_sizes(m, {degree, rank, false}).kv_heads * m.head_dim);
          }
        }
      }
      EXPECT_EQ(sum, held);
      EXPECT_GE(sum, num_parameters(m));
    }
  }
}

// 8 query heads over 2 key and value heads: from tp 4 on, each rank has one of them and neighbours
// repeat the work on it; all else is a t-th.
TEST(Tensor, FlopsOfARank) {
  const ModelSpec m = llama_like();
  const std::int64_t N = 2 * 9, D = 64, F = 176, d = 8;
  const UnitCost whole = walk(m, shape_of(2, 9))[1];
  for (const int t : {2, 4, 8}) {
    for (const bool sequence_parallel : {false, true}) {
      const UnitCost part = walk(m, cut(shape_of(2, 9), t, t - 1, sequence_parallel))[1];
      const std::int64_t kv = std::max(2 / t, 1);
      const auto qkv = static_cast<double>(2 * N * D * (8 / t + 2 * kv) * d);
      EXPECT_EQ(op_of(part, "qkv").forward.value, qkv);
      EXPECT_EQ(op_of(part, "qkv").backward_weight.value, qkv);
      EXPECT_EQ(op_of(part, "up").forward.value, static_cast<double>(2 * N * D * 2 * F / t));
      for (const char* op : {"attention", "out", "up", "down"}) {
        EXPECT_EQ(t * op_of(part, op).forward, op_of(whole, op).forward) << op;
        EXPECT_EQ(t * op_of(part, op).backward_input, op_of(whole, op).backward_input) << op;
        EXPECT_EQ(t * op_of(part, op).backward_weight, op_of(whole, op).backward_weight) << op;
      }
    }
  }
}

// A vocabulary of 251 and a width of 129 divide by nothing.
TEST(Tensor, case_094_UnevenSharesAddUp) {
  const ModelSpec m = uneven_model();
  const std::int64_t N = 2 * 9, D = 64;
  const std::vector<UnitCost> whole = walk(m, shape_of(2, 9));
  for (const int t : {2, 3, 4}) {
    Flops flops{};
    std::int64_t vocab = 0;
    for (int rank = 0; rank < t; ++rank) {
      const std::int64_t f = 129 / t + (rank < 129 % t ? 1 : 0);
      const std::int64_t v = 251 / t + (rank < 251 % t ? 1 : 0);
      const WorkShape shape = cut(shape_of(2, 9), t, rank);
      const std::vector<UnitCost> units = walk(m, shape);
      for (const UnitCost& u : units) flops += u.forward();
      EXPECT_EQ(stash_rows(units[1])["mlp.pre"], 4 * N * 2 * f);
      EXPECT_EQ(late_rows(units[1])["mlp.act"], 4 * N * f);
      EXPECT_EQ(op_of(units[1], "down").backward_weight.value, static_cast<double>(2 * N * D * f));
      EXPECT_EQ(op_of(units[4], "head").forward.value, static_cast<double>(2 * N * D * v));
      EXPECT_EQ(logits_bytes(m, shape).value, 4 * N * v);
      vocab += v;
    }
    Flops all{};
    for (const UnitCost& u : whole) all += u.forward();
    EXPECT_EQ(flops, all) << t;
    EXPECT_EQ(vocab, 251);
  }
  EXPECT_THROW(walk(m, cut(shape_of(1, 8), 5)), ConfigError);
}

TEST(Tensor, StashOfASwiGluBlockWithQkNorm) {
  const ModelSpec m = qwen3_like();
  const std::int64_t B = 2, T = 9, N = B * T, D = 64, F = 176, d = 16, t = 4;
  for (const bool sequence_parallel : {false, true}) {
    for (int rank = 0; rank < t; ++rank) {
      WorkShape shape = cut(shape_of(B, T), t, rank, sequence_parallel);
      shape.dtype = Dtype::kBFloat16;
      const std::int64_t R = !sequence_parallel ? N : rank < 2 ? 5 : 4;  // of 18
      const std::int64_t H = 2, K = 1, f = F / t;
      const UnitCost u = walk(m, shape)[1];
      const std::int64_t heads = N * (H + 2 * K) * d + N * (H + K) * d + N * H * d;
      const std::int64_t wide = 2 * R + N * (H + K) + B * H * T;
      EXPECT_EQ(u.stash().value, 2 * (2 * R * D + 2 * N * D + heads + N * 2 * f) + 4 * wide);
      const std::int64_t late = N * (H + 2 * K) * d + 2 * N * D + N * f + N * 2 * f;
      const std::int64_t gains = 2 * (sequence_parallel ? 1 : B) * D + B * 2 * d;
      EXPECT_EQ(u.weight_stash().value, 2 * (2 * N * D + N * H * d + late) + 4 * gains);
    }
  }
}

TEST(Tensor, GatheringAgainKeepsOwnRows) {
  for (const ModelSpec& m : families()) {
    WorkShape shape = cut(shape_of(2, 9), 4, 2, true);
    const UnitCost kept = walk(m, shape)[1];
    shape.gather_again = true;
    const UnitCost again = walk(m, shape)[1];
    shape.fused_backward = false;
    const UnitCost deferred = walk(m, shape)[1];
    const std::int64_t N = 18, R = 4, D = 64;
    for (const char* what : {"norm1.y", "norm2.y"}) {
      EXPECT_EQ(stash_rows(kept)[what], 4 * N * D);
      EXPECT_EQ(stash_rows(again)[what], 4 * R * D);
      EXPECT_EQ(stash_rows(deferred)[what], 4 * R * D);
    }
    for (const char* what : {"attn.dy", "mlp.dy"}) {
      EXPECT_EQ(late_rows(kept)[what], 4 * N * D);
      EXPECT_EQ(late_rows(again)[what], 4 * N * D);
      EXPECT_EQ(late_rows(deferred)[what], 4 * R * D);
    }
    shape.recompute = Recompute::kSelective;
    shape.gather_again = false;  // it does all the same
    const UnitCost selective = walk(m, shape)[1];
    EXPECT_EQ(late_rows(selective)["norm1.y"], 4 * R * D);
    EXPECT_EQ(selective.weight_stash(), deferred.weight_stash());
    EXPECT_EQ((deferred.stash() - selective.stash()).value, 4 * 2 * R * D);
    shape.recompute = Recompute::kFull;
    EXPECT_EQ(walk(m, shape)[1].stash().value, 4 * R * D);
    EXPECT_EQ(walk(m, shape)[1].weight_stash(),
              walk(m, cut(shape_of(2, 9), 4, 2, true))[1].weight_stash());
    // Without cut rows there is nothing to gather.
    shape = cut(shape_of(2, 9), 4);
    const UnitCost whole = walk(m, shape)[1];
    shape.gather_again = true;
    EXPECT_EQ(walk(m, shape)[1].stash(), whole.stash());
    EXPECT_TRUE(walk(m, shape)[1].wire(kBackwardWeight).empty());
  }
}

TEST(Tensor, case_098_FewerRowsThanRanks) {
  const ModelSpec m = llama_like();
  for (int rank = 0; rank < 4; ++rank) {
    const std::vector<UnitCost> units = walk(m, cut(shape_of(1, 3), 4, rank, true));
    const std::int64_t R = rank < 3 ? 1 : 0;
    EXPECT_EQ(stash_rows(units[1])["norm1.x"], 4 * R * 64);
    EXPECT_EQ(stash_rows(units[1])["norm1.y"], 4 * 3 * 64);
    EXPECT_EQ(late_rows(units[1])["norm1.dgain"], 4 * 64);
    EXPECT_EQ(stash_rows(units[4])["head.dx"], 4 * R * 64);
    EXPECT_EQ(late_rows(units[0])["embedding.dy"], 4 * R * 64);
    EXPECT_EQ(sent(units[1], kForward, kAllGather), (WireCost{2, {2 * 3 * 1 * 64 * 4}}));
  }
}

// Shoeybi et al., section 3: 4 all_reduces of b s h a layer. Korthikanti et al., section 4.2.2:
// with sequence parallelism 4 all_gathers and 4 reduce_scatters, the same bytes.
TEST(TensorWire, ABlockSendsEightTimesItsRows) {
  for (const ModelSpec& m : families()) {
    for (const std::int64_t n : {2, 4, 8}) {
      WorkShape shape = cut(shape_of(3, 16), static_cast<int>(n));
      shape.dtype = Dtype::kBFloat16;
      const std::int64_t once = 2 * 3 * 16 * 64 * (n - 1) / n;  // bytes of b s h (n-1)/n
      const UnitCost plain = walk(m, shape)[2];
      EXPECT_EQ(sent(plain, kAllReduce), (WireCost{4, {8 * once}}));
      EXPECT_EQ(sent(plain, kAllGather).calls + sent(plain, kReduceScatter).calls, 0);
      EXPECT_EQ(calls(plain, kForward, kAllReduce), 2);

      shape.split.sequence_parallel = true;
      const UnitCost kept = walk(m, shape)[2];
      EXPECT_EQ(sent(kept, kAllGather), (WireCost{4, {4 * once}}));
      EXPECT_EQ(sent(kept, kReduceScatter), (WireCost{4, {4 * once}}));
      EXPECT_EQ(sent(kept, kAllReduce).calls, 0);
      EXPECT_EQ(calls(kept, kForward, kAllGather), 2);
      EXPECT_EQ(calls(kept, kForward, kReduceScatter), 2);
      EXPECT_TRUE(kept.wire(kBackwardWeight).empty());
    }
  }
}

TEST(TensorWire, GatheringAgainAndRecomputationSendMore) {
  for (const ModelSpec& m : families()) {
    WorkShape shape = cut(shape_of(3, 16), 4, 0, true);
    shape.gather_again = true;
    const std::int64_t once = 4 * 3 * 16 * 64 * 3 / 4;
    EXPECT_EQ(sent(walk(m, shape)[1], kAllGather), (WireCost{6, {6 * once}}));
    shape.fused_backward = false;
    EXPECT_EQ(sent(walk(m, shape)[1], kAllGather), (WireCost{8, {8 * once}}));
    EXPECT_EQ(sent(walk(m, shape)[1], kReduceScatter), (WireCost{4, {4 * once}}));
    shape.gather_again = false;
    EXPECT_EQ(sent(walk(m, shape)[1], kAllGather).calls, 4);
    shape.recompute = Recompute::kSelective;
    EXPECT_EQ(sent(walk(m, shape)[1], kAllGather).calls, 8);
    shape.recompute = Recompute::kFull;
    EXPECT_EQ(sent(walk(m, shape)[1], kAllGather), (WireCost{6, {6 * once}}));
    EXPECT_EQ(sent(walk(m, shape)[1], kReduceScatter), (WireCost{5, {5 * once}}));
    EXPECT_EQ(calls(walk(m, shape)[1], kBackwardInput, kReduceScatter), 3);
    shape.split.sequence_parallel = false;
    EXPECT_EQ(sent(walk(m, shape)[1], kAllReduce), (WireCost{5, {10 * once}}));
  }
}

// A weight half gathers what it multiplies: nothing for frozen weights or for biases.
TEST(TensorWire, FrozenWeightsGatherNothing) {
  WorkShape shape = cut(shape_of(2, 8), 2, 0, true);
  shape.gather_again = true;
  shape.fused_backward = false;
  shape.trainable = {"*c_fc.weight", "*c_proj.bias", "*wpe*"};
  const std::vector<UnitCost> units = walk(gpt2_like(), shape);
  EXPECT_EQ(calls(units[1], kBackwardWeight, kAllGather), 1);
  EXPECT_EQ(op_of(units[1], "up").wire.back().pass, kBackwardWeight);
  EXPECT_TRUE(units[0].wire(kBackwardWeight).empty());
  EXPECT_EQ(late_rows(units[0])["embedding.dy"], 4 * 8 * 64);
}

// The embedding sums its rows once; the head gathers, sums, and sends three doubles a row.
TEST(TensorWire, EmbeddingAndHead) {
  const std::int64_t B = 3, T = 7, N = B * T, D = 64, C = 8, n = 4;  // chunks of 8, 8 and 5
  WorkShape shape = cut(shape_of(B, T), n);
  shape.head_chunk_tokens = C;
  const std::int64_t padded = 4 * (n - 1) * 6 * D;  // pieces of 6, 5, 5, 5
  const WireCost summed{1, {4 * 2 * (n - 1) * ((N * D + n - 1) / n)}};
  std::vector<UnitCost> units = walk(llama_like(), shape);
  EXPECT_EQ(sent(units[0], kAllReduce), summed);
  EXPECT_EQ(sent(units[0], kAllGather).calls, 0);
  EXPECT_EQ(sent(units[4], kAllReduce), summed);
  EXPECT_EQ(sent(units[4], kAllGather), (WireCost{3, {(n - 1) * N * 3 * 8}}));
  shape.split.sequence_parallel = true;
  units = walk(llama_like(), shape);
  EXPECT_EQ(sent(units[0], kForward, kReduceScatter), (WireCost{1, {padded}}));
  EXPECT_EQ(sent(units[0], kBackwardWeight, kAllGather), (WireCost{1, {padded}}));
  EXPECT_EQ(sent(units[4], kForward, kReduceScatter), (WireCost{1, {padded}}));
  EXPECT_EQ(sent(units[4], kForward, kAllGather), (WireCost{4, {padded + (n - 1) * N * 3 * 8}}));
}

// Pieces of each rank's own rows travel together; where all are empty there is no call.
TEST(TensorWire, ChunksOfARowParallelProduct) {
  for (const std::int64_t seq : {1, 3, 7, 10, 29}) {
    for (const int n : {2, 4, 8}) {
      for (const int chunks : {2, 3, 5}) {
        WorkShape shape = cut(shape_of(1, seq), n);
        shape.overlap_chunks = chunks;
        WireCost reduced, scattered;
        for (int i = 0; i < chunks; ++i) {
          const std::int64_t rows = piece(seq, chunks, i).size();
          if (rows > 0) reduced += {2, {2 * 4 * 2 * (n - 1) * ((rows * 64 + n - 1) / n)}};
          std::int64_t most = 0;
          for (int q = 0; q < n; ++q) {
            most = std::max(most, piece(piece(seq, n, q).size(), chunks, i).size());
          }
          if (most > 0) scattered += {2, {2 * 4 * (n - 1) * most * 64}};
        }
        EXPECT_EQ(sent(walk(llama_like(), shape)[1], kForward, kAllReduce), reduced);
        shape.split.sequence_parallel = true;
        const UnitCost cut_rows = walk(llama_like(), shape)[1];
        EXPECT_EQ(sent(cut_rows, kForward, kReduceScatter), scattered) << seq << " " << n;
        EXPECT_EQ(calls(cut_rows, kBackwardInput, kReduceScatter), 2);
        EXPECT_EQ(calls(cut_rows, kForward, kAllGather), 2);
      }
    }
  }
}

Plan plan_of(int tp, bool sequence_parallel, int shards = 1, int zero_stage = 0) {
  Plan plan;
  plan.degrees[static_cast<std::size_t>(Axis::kTp)] = tp;
  plan.degrees[static_cast<std::size_t>(Axis::kDpShard)] = shards;
  plan.sequence_parallel = sequence_parallel;
  plan.zero_stage = zero_stage;
  plan.microbatch_size = 2;
  plan.seq_len = 8;
  plan.num_microbatches = 3;
  return plan;
}

WireCosts step_of(const ModelSpec& model, const Plan& plan, int rank = 0,
                  const std::vector<std::string>& trainable = {}) {
  WorkShape work = work_shape(plan, rank);
  work.trainable = trainable;
  return step_wire(lowered_schedule(model, plan, trainable).per_rank[0], model, work,
                   zero_shape(model, plan, trainable, rank));
}

// One micro-batch: 3 layers with 4 calls, the embedding's and the head's.
TEST(TensorWire, AStepSumsItsMicrobatches) {
  const WireCosts plain = step_of(llama_like(), plan_of(4, false));
  const std::int64_t rows = 2 * 8 * 64 * 4;  // bytes
  EXPECT_EQ(plain.at("tp").at("all_reduce"), (WireCost{3 * 14, {3 * 14 * 2 * rows * 3 / 4}}));
  EXPECT_EQ(plain.at("tp").at("all_gather"), (WireCost{3, {3 * 3 * 16 * 3 * 8}}));
  const WireCosts rows_cut = step_of(llama_like(), plan_of(4, true));
  EXPECT_EQ(rows_cut.at("tp").at("reduce_scatter"), (WireCost{3 * 14, {3 * 14 * rows * 3 / 4}}));
  // The embedding's weight half, the head's input, and a chunk's rows beside the blocks'.
  EXPECT_EQ(rows_cut.at("tp").at("all_gather"),
            (WireCost{3 * 15, {3 * 14 * rows * 3 / 4 + 3 * 3 * 16 * 3 * 8}}));
}

// Terms of replicated gradients are summed once a unit: those of two k and v heads over pairs of
// neighbours, those of norms over all when rows are cut.
TEST(TensorWire, TermsOfGradientsAreSummed) {
  const ModelSpec m = qwen3_like();  // 2 kv heads, q and k norms
  const auto bytes = [](std::int64_t n, std::int64_t numel) {
    return 4 * 2 * (n - 1) * ((numel + n - 1) / n);
  };
  const std::int64_t kv = 2 * 64 * 16;  // k and v of one head
  WireCosts sums = zero_wire(lowered_schedule(m, plan_of(4, false), {}).per_rank[0],
                             zero_shape(m, plan_of(4, false), {}, 0));
  EXPECT_EQ(sums.at("tp_repeat").at("all_reduce"), (WireCost{3, {3 * bytes(2, kv)}}));
  EXPECT_EQ(sums.at("tp").at("all_reduce"), (WireCost{3, {3 * bytes(4, 32)}}));
  EXPECT_EQ(sums.size(), 2U);
  sums = zero_wire(lowered_schedule(m, plan_of(4, true), {}).per_rank[0],
                   zero_shape(m, plan_of(4, true), {}, 0));
  EXPECT_EQ(sums.at("tp").at("all_reduce"),
            (WireCost{4, {3 * bytes(4, 32 + 2 * 64) + bytes(4, 64)}}));
  EXPECT_EQ(sums.at("tp_repeat").at("all_reduce").calls, 3);
  // Only what is trained.
  const std::vector<std::string> trainable = {"*layers.1.*.q_norm*", "*up_proj*"};
  sums = zero_wire(lowered_schedule(m, plan_of(4, true), trainable).per_rank[0],
                   zero_shape(m, plan_of(4, true), trainable, 0));
  EXPECT_EQ(sums.at("tp").at("all_reduce"), (WireCost{1, {bytes(4, 16)}}));
  EXPECT_FALSE(sums.contains("tp_repeat"));
  // All replicas at once where one head is on every rank.
  ModelSpec one = m;
  one.kv_heads = 1;
  sums = zero_wire(lowered_schedule(one, plan_of(4, false), {}).per_rank[0],
                   zero_shape(one, plan_of(4, false), {}, 0));
  EXPECT_EQ(sums.at("tp").at("all_reduce"), (WireCost{3, {3 * bytes(4, kv + 32)}}));
  EXPECT_FALSE(sums.contains("tp_repeat"));
}

// Under ZeRO 2 and 3 gradients are reduced once a micro-batch, and so are their terms; the wide
// positions' and biases' of GPT-2 among them.
TEST(TensorWire, TermsAreSummedAsOftenAsGradientsAreReduced) {
  const ModelSpec m = gpt2_like();
  for (const int stage : {0, 1, 2, 3}) {
    Plan plan = plan_of(2, true, 2, stage);
    plan.microbatch_size = 1;
    const WireCosts sums =
        zero_wire(lowered_schedule(m, plan, {}).per_rank[0], zero_shape(m, plan, {}, 3));
    const std::int64_t often = stage < 2 ? 1 : 3;
    const std::int64_t block = 2 * 2 * 64 + 2 * 64;  // norms, biases of out and down
    const std::int64_t numel = 3 * block + 64 * 64 + 2 * 64;
    EXPECT_EQ(sums.at("tp").at("all_reduce"), (WireCost{often * 5, {often * 4 * numel}}));
  }
}

// Each rank's shards are those of its own part: together all ranks keep each parameter, the
// replicated ones on every rank.
TEST(TensorState, APartIsATth) {
  ModelSpec m = uneven_model();
  for (const int tp : {1, 2, 3, 4}) {
    std::int64_t sum = 0;
    const Plan plan = plan_of(tp, true, 2, 3);
    for (int rank = 0; rank < 2 * tp; ++rank) {
      const StateBytes state = state_bytes(zero_shape(m, plan, {}, rank), "adamw", 0.0);
      sum += state.params.value;
      EXPECT_EQ(state.grads, state.params);
      EXPECT_EQ(state.optimizer, 2 * state.params);
      const double part = 4.0 * static_cast<double>(num_parameters(m)) / (2.0 * tp);
      EXPECT_NEAR(static_cast<double>(state.params.value) / part, 1.0, 0.06) << tp << " " << rank;
    }
    EXPECT_EQ(sum, 4 * (num_parameters(m) + (tp - 1) * 7 * 64)) << tp;  // 7 norms
  }
}

// Korthikanti et al., table 2. Kept gathered inputs, norms' outputs, are 4 of its 34 s b h.
TEST(TensorKorthikanti, Table2) {
  const std::int64_t s = 2048, b = 2, h = 12288, a = 96, all = s * b * h,
                     scores = 5 * a * s * s * b;
  for (const int t : {1, 2, 4, 8}) {
    PaperAssumptions paper;
    paper.split.degree = t;
    const auto bytes = [&] { return korthikanti_layer_bytes(s, b, h, a, paper).value; };
    EXPECT_EQ(bytes(), 10 * all + 24 * all / t + scores / t);
    paper.split.sequence_parallel = true;
    EXPECT_EQ(bytes(), 34 * all / t + scores / t);
    paper.gather_again = false;
    EXPECT_EQ(bytes(), 4 * all + 30 * all / t + scores / t);
  }
}

TEST(TensorTransient, GrowsByWhatIsInFlight) {
  for (const ModelSpec& m : families()) {
    const WorkShape one = shape_of(2, 9);
    const std::int64_t whole = transient_bound(m, one).value;
    for (const int t : {2, 4, 8}) {
      const std::int64_t part = transient_bound(m, cut(one, t)).value;
      EXPECT_GE(part, 4 * 10 * 18 * 64);  // all rows of the stream, gathered ones beside
      EXPECT_LT(part, whole + 4 * 4 * 24 * 64 + 4 * 6 * 9 * 18);
    }
  }
}

}  // namespace
}  // namespace quatrain
