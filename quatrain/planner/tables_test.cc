// SPDX-License-Identifier: Apache-2.0
// Figures that papers and books print, each from the functions that the planner computes with.
#include <gtest/gtest.h>

#include "quatrain/cost/walk.h"
#include "quatrain/cost/zero.h"
#include "quatrain/planner/bounds.h"
#include "quatrain/planner/pipeline.h"
#include "quatrain/spec/model_io.h"
#include "quatrain/spec/parameters.h"

namespace quatrain {
namespace {

constexpr double kGib = 1 << 30;
constexpr BytesPerParameter kPaper{.value = 2, .grad = 2, .optimizer = 12};

// Rajbhandari et al., arXiv:1910.02054, table 1: GB a device by ranks, stages 1 to 3.
TEST(ZeroPaper, Table1) {
  struct Row {
    int ranks;
    double billions[3][3];  // [7.5B, 128B, 1T][stage 1, 2, 3]
  };
  const Row rows[] = {
      {1, {{120, 120, 120}, {2048, 2048, 2048}, {16000, 16000, 16000}}},
      {4, {{52.5, 41.3, 30}, {896, 704, 512}, {7000, 5500, 4000}}},
      {16, {{35.6, 21.6, 7.5}, {608, 368, 128}, {4750, 2875, 1000}}},
      {64, {{31.4, 16.6, 1.88}, {536, 284, 32}, {4187, 2218, 250}}},
      {256, {{30.4, 15.4, 0.47}, {518, 263, 8}, {4046, 2054, 62.5}}},
      {1024, {{30.1, 15.1, 0.12}, {513, 257, 2}, {4011, 2013, 15.6}}},
  };
  const double sizes[] = {7.5, 128, 1000};
  int cells = 0;
  for (const Row& row : rows) {
    for (int model = 0; model < 3; ++model) {
      for (int stage = 1; stage <= 3; ++stage, ++cells) {
        const double printed = row.billions[model][stage - 1];
        const double gb = even_zero_bytes(sizes[model] * 1e9, row.ranks, stage, kPaper) / 1e9;
        EXPECT_NEAR(gb, printed, std::max(0.005 * printed, 0.006))
            << sizes[model] << "B, " << row.ranks << " ranks, stage " << stage;
      }
    }
  }
  EXPECT_EQ(cells, 54);
}

// Table 2: the largest model, in billions, of 32 GB accelerators; `mp` ranks share it.
TEST(ZeroPaper, LargestModels) {
  struct Row {
    int mp, gpus;
    double largest[4];
  };
  const Row rows[] = {{1, 64, {2, 7.6, 14.4, 128}},
                      {2, 128, {4, 15.2, 28.8, 256}},
                      {4, 256, {8, 30.4, 57.6, 512}},
                      {8, 512, {16, 60.8, 115.2, 1024}},
                      {16, 1024, {32, 121.6, 230.4, 2048}}};
  for (const Row& row : rows) {
    for (int stage = 0; stage < 4; ++stage) {
      const double each = even_zero_bytes(1e9, row.gpus / row.mp, stage, kPaper);
      EXPECT_NEAR(row.mp * 32e9 / each, row.largest[stage], 0.01 * row.largest[stage]);
    }
  }
}

// Values, gradients, masters and moments of 2, 2, 4 and 2 x 2 bytes: largest models of 8 ranks of
// 80 GB, in billions.
TEST(ZeroPaper, MostlySixteenBit) {
  const BytesPerParameter mostly{.value = 2, .grad = 2, .optimizer = 8};
  // Kept whole in stage 1: a value and gradient, and a compensation in place of a master's half.
  const double largest[] = {80.0 / 12, 80.0 / 5, 80.0 / 3.25, 80.0 / 1.5};
  for (int stage = 0; stage < 4; ++stage) {
    EXPECT_NEAR(80e9 / even_zero_bytes(1e9, 8, stage, mostly), largest[stage], 0.01);
  }
}

// Korthikanti et al., arXiv:2205.05198, figures 1 and 7: 16-bit activations and states.
struct Megatron {
  std::int64_t heads, hidden, layers, batch;
  int pp, chunks;
  double states, none, sequence_selective;  // GiB
  double with_sequence, selective, both;    // percent of `none`
  double parameters() const {
    return 12.0 * static_cast<double>(layers * hidden * hidden) / (8 * pp);
  }
  // Of the first stage: p micro-batches of a p-th of the layers, more where stages are interleaved.
  double layers_in_flight() const {
    return static_cast<double>(layers) * (chunks == 1 ? 1.0 : 1 + (pp - 1.0) / (pp * chunks));
  }
  double layer(bool sequence, bool scores) const {
    return static_cast<double>(
        korthikanti_layer_bytes(2048, batch, hidden, heads, {true, scores, {8, 0, sequence}, true})
            .value);
  }
};
const Megatron kMegatron[] = {
    {64, 6144, 48, 4, 1, 1, 45.5625, 59.25, 9.5625, 66.84, 49.42, 16.18},
    {96, 12288, 96, 1, 8, 3, 45.5625, 66.84375, 12.3515625, 62.04, 56.53, 18.49},
    {128, 20480, 105, 1, 35, 3, 31.640625, 114.0234375, 23.076171875, 58.31, 62.04, 20.27},
    {160, 25600, 128, 1, 64, 1, 32.958984375, 131.25, 26.5625, 58.31, 62.04, 20.27}};

TEST(KorthikantiPaper, Figure1) {
  for (const Megatron& m : kMegatron) {
    EXPECT_NEAR(even_zero_bytes(m.parameters(), 1, 0, {}) / kGib, m.states, 1e-3 * m.states);
    EXPECT_NEAR(m.layer(false, true) * m.layers_in_flight() / kGib, m.none, 1e-3 * m.none);
    EXPECT_NEAR(m.layer(true, false) * m.layers_in_flight() / kGib, m.sequence_selective,
                1e-3 * m.sequence_selective);
  }
}

TEST(KorthikantiPaper, Figure7) {
  for (const Megatron& m : kMegatron) {
    const double none = m.layer(false, true);
    EXPECT_NEAR(100 * m.layer(true, true) / none, m.with_sequence, 0.3);
    EXPECT_NEAR(100 * m.layer(false, false) / none, m.selective, 0.3);
    EXPECT_NEAR(100 * m.layer(true, false) / none, m.both, 0.3);
  }
}

// Narayanan et al., arXiv:2104.04473, equation 3, with table 1's models: FLOPs of an iteration
// that computes forwards twice, attention's pairs all counted.
TEST(NarayananPaper, FlopsOfAnIteration) {
  struct Row {
    double heads, hidden, layers, gpus, batch, teraflops, seconds;
  };
  const Row rows[] = {{24, 2304, 24, 32, 512, 137, 3.53},
                      {96, 12288, 80, 1536, 2304, 148, 24.82},
                      {160, 25600, 128, 3072, 3072, 163, 102.63}};
  for (const Row& row : rows) {
    ModelSpec model = catalog_model("gpt2").spec;
    model.hidden = static_cast<std::int64_t>(row.hidden);
    model.heads = model.kv_heads = static_cast<std::int64_t>(row.heads);
    model.head_dim = model.hidden / model.heads;
    model.ffn = 4 * model.hidden;
    model.layers = static_cast<std::int64_t>(row.layers);
    model.vocab = 51200;
    model.max_positions = 2048;
    WorkShape shape;
    shape.seq = 2048;
    double flops = 0, pairs = 0;
    for (const UnitCost& unit : walk(model, shape)) {
      flops += (unit.forward() + unit.backward_input() + unit.backward_weight()).value;
      if (unit.ops.back().name == "down") flops += unit.forward().value;  // made again, all of it
      for (const OpCost& op : unit.ops) {
        if (op.name == "attention") pairs += (2.0 * op.forward + op.backward_input).value;
      }
    }
    const double all_pairs = flops + pairs;  // twice the visible ones, but for the diagonal
    EXPECT_NEAR(row.batch * all_pairs / (row.gpus * row.teraflops * 1e12), row.seconds,
                0.01 * row.seconds);
  }
}

// The scaling book (jax-ml/scaling-book) on TPU v5p: 459 TFLOP/s, 180 GB/s an axis both ways.
constexpr double kV5p = 4.59e14, kV5pIntensity = kV5p / 1.8e11;

TEST(ScalingBook, Llama370B) {
  const ModelSpec model = catalog_model("llama-3-70b").spec;
  const double parameters = static_cast<double>(num_parameters(model));
  EXPECT_NEAR(parameters, 70.4e9, 0.005 * 70.4e9);
  double mlp = 0, attention = 0, vocab = 0;
  for (const ParameterInfo& p : quatrain::parameters(model)) {
    const double numel = static_cast<double>(p.numel());
    if (p.name.find("mlp") != std::string::npos) mlp += numel;
    if (p.name.find("attn") != std::string::npos) attention += numel;
    if (p.layer < 0 || p.layer == model.layers) vocab += numel;
  }
  EXPECT_NEAR(mlp, 56.3e9, 0.1e9);
  EXPECT_NEAR(attention, 12e9, 0.1e9);
  EXPECT_NEAR(vocab, 2.1e9, 0.05e9);
  const double per_token = 6 * 70e9, total = per_token * 15e12;
  EXPECT_NEAR(total, 6.3e24, 0.01e24);
  EXPECT_NEAR(total / (8960 * kV5p * 0.4), 3.8e6, 0.05e6);  // 44 days
  const double states = 2 * 70e9 + 8 * 70e9, saved = 2 * 8192 * 4e6 * 4.0 * 80;
  EXPECT_NEAR((states + saved) / 1e12, 21.6, 0.1);
  EXPECT_NEAR((states + saved) / 96e9, 225, 1);
}

TEST(ScalingBook, Thresholds) {
  EXPECT_NEAR(kV5pIntensity, 2550, 1);
  EXPECT_NEAR(data_parallel_tokens(kV5pIntensity, 3), 850, 1);
  EXPECT_NEAR(mixed_tokens(kV5pIntensity, 32768, {2, 1}), 397, 1);
  // 4.19M tokens on 8,960: pure FSDP is below its bound, with tp of 4 not.
  const double tokens = 4.19e6, each = tokens / 8960;
  EXPECT_LT(each, data_parallel_tokens(kV5pIntensity, 3));
  EXPECT_NEAR(mixed_tokens(kV5pIntensity, 28672, {2, 1}), 453, 1);
  EXPECT_GT(each, mixed_tokens(kV5pIntensity, 28672, {2, 1}));
  EXPECT_NEAR(mixed_data_ranks(tokens, 8960, 28672, {2, 1}), 1618, 1);
  EXPECT_NEAR(tensor_parallel_ranks(kV5pIntensity, 1, 28672), 11.2, 0.1);
  // 16M tokens: as many accelerators as stay bound by computing.
  EXPECT_NEAR(16e6 / data_parallel_tokens(kV5pIntensity, 3), 18823, 10);
  EXPECT_NEAR(96e9 / 10, 9.6e9, 0.1e9);  // Adam with 10 bytes a parameter, data parallelism alone
  EXPECT_NEAR(kV5p / 6.25e9, 73440, 1);  // across pods
}

TEST(ScalingBook, TheCatalogueHasItsTorus) {
  Job job;
  job.cluster = cluster("tpu-v5p");
  job.gpus = 8960;
  EXPECT_NEAR(tokens_for_compute_bound(job), 850, 1);
}

}  // namespace
}  // namespace quatrain
