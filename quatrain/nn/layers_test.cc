// SPDX-License-Identifier: Apache-2.0
// Every part of a model against libtorch's autograd in float64: outputs, input gradients, weight
// gradients. Widths of 1 and odd ones are among the shapes. All new memory holds NaN.
// Shapes: B sequences, T positions, D hidden, H heads, K kv heads, d head dim, F ffn, V vocabulary.
#include <ATen/ops/embedding.h>

#include <array>

#include "quatrain/kernels/memory.h"
#include "quatrain/nn/attention.h"
#include "quatrain/nn/embedding.h"
#include "quatrain/nn/head.h"
#include "quatrain/nn/linear.h"
#include "quatrain/nn/mlp.h"
#include "quatrain/nn/norm.h"
#include "quatrain/nn/testing.h"

namespace quatrain {
namespace {

using testing::add_leaves;
using testing::alone;
using testing::alone_in_all;
using testing::expect_grads;
using testing::leaf;
using testing::Leaves;
using testing::make_pass;
using testing::normal;
using testing::random_unit;
using testing::range;
using testing::relative_error;

constexpr double kTight = 1e-12;
constexpr double kExp = 1e-10;  // where a chain of exp or erf lies between

TEST(Linear, EqualsAutograd) {
  for (const auto& [n, in, out] : std::vector<std::array<std::int64_t, 3>>{
           {1, 1, 1}, {7, 5, 3}, {33, 17, 65}, {4, 1, 9}, {16, 64, 48}}) {
    for (const bool bias : {false, true}) {
      auto unit = random_unit({{"w", {out, in}}, {"b", {out}}});
      const Linear layer(range(*unit, "w"), bias ? range(*unit, "b") : ParamRange{});
      AccumulatingSink sink;
      Leaves leaves;
      add_leaves(leaves, *unit);
      const at::Tensor x = leaf(normal({n, in}));
      const at::Tensor residual = normal({n, out});
      const at::Tensor dy = normal({n, out});
      at::Tensor want = x.mm(leaves["w"].t());
      want = bias ? want + leaves["b"] : want + 0.0 * leaves["b"];
      want.backward(dy);
      EXPECT_LE(relative_error(layer.forward(x.detach()), want), kTight);
      EXPECT_LE(relative_error(layer.forward_onto(residual, x.detach()), want + residual), kTight);
      EXPECT_LE(relative_error(layer.backward_input(dy), x.grad()), kTight);
      layer.backward_weight(sink, dy, x.detach());
      expect_grads(*unit, leaves, kTight);
    }
  }
}

TEST(Linear, BFloat16RoundsOnceAGemm) {
  auto unit = random_unit({{"w", {9, 33}}, {"b", {9}}}, at::kBFloat16);
  const Linear layer(range(*unit, "w"), range(*unit, "b"));
  const at::Tensor x = normal({6, 33}).to(at::kBFloat16);
  const at::Tensor want = x.to(at::kDouble).mm(unit->param("w").value.to(at::kDouble).t()) +
                          unit->param("b").value.to(at::kDouble);
  EXPECT_LE(relative_error(layer.forward(x), want), 0.008);
}

TEST(Norm, EqualsAutograd) {
  constexpr Norm::Rows kRows{"x", "mean", "rstd", "y", "dgain", "dbias"};
  for (const auto& [batch, seq, width] : std::vector<std::array<std::int64_t, 3>>{
           {1, 1, 2}, {2, 3, 7}, {3, 5, 33}, {2, 4, 64}, {1, 9, 130}}) {
    for (const bool centred : {false, true}) {
      for (const bool with_residual : {false, true}) {
        auto unit = random_unit({{"g", {width}}, {"b", {width}, centred}});
        const Norm norm(range(*unit, "g"), centred ? range(*unit, "b") : ParamRange{}, 1e-5, kRows);
        AccumulatingSink sink;
        Leaves leaves;
        add_leaves(leaves, *unit);
        const at::Tensor residual = with_residual ? normal({batch * seq, width}) : at::Tensor();
        const at::Tensor above = with_residual ? normal({batch * seq, width}) : at::Tensor();
        const at::Tensor start = normal({batch * seq, width});
        const at::Tensor x = leaf(with_residual ? start + residual : start);
        const at::Tensor dy = normal({batch * seq, width});
        const at::Tensor want =
            testing::ref_norm(x, leaves["g"], centred ? leaves["b"] : at::Tensor(), 1e-5);
        want.backward(dy);
        Stash stash;
        at::Tensor in = start.clone();
        const at::Tensor y = norm.forward(in, residual, stash);
        EXPECT_LE(relative_error(in, x), kTight);
        EXPECT_LE(relative_error(y, want), kTight);
        norm.restore_y(stash);
        EXPECT_TRUE(testing::same_bits(stash.take("y"), y));
        const at::Tensor dx = norm.backward_input(dy, above, seq, stash);
        EXPECT_LE(relative_error(dx, with_residual ? x.grad() + above : x.grad()), kExp)
            << "width " << width;
        EXPECT_EQ(stash.at("dgain").size(0), batch);
        norm.backward_weight(sink, stash);
        EXPECT_TRUE(stash.empty());
        expect_grads(*unit, leaves, kTight);
      }
    }
  }
}

TEST(Embedding, EqualsAutograd) {
  for (const bool learned : {false, true}) {
    auto unit = random_unit({{"wte", {11, 5}}, {"wpe", {8, 5}, learned}});
    ModelSpec spec;
    Embedding layer(spec, range(*unit, "wte"), learned ? range(*unit, "wpe") : ParamRange{},
                    alone());
    AccumulatingSink sink;
    Leaves leaves;
    add_leaves(leaves, *unit);
    const Pass pass = make_pass({.batch = 3, .seq = 7, .vocab = 11}, sink);
    at::Tensor want = at::embedding(leaves["wte"], pass.tokens_BT);
    if (learned) want = want + at::embedding(leaves["wpe"], pass.positions_BT);
    want = want.view({21, 5});
    const at::Tensor dy = normal({21, 5});
    want.backward(dy);
    Stash stash;
    NoFiller filler;
    EXPECT_LE(relative_error(layer.forward(pass.tokens_BT, pass, stash), want), kTight);
    EXPECT_TRUE(stash.empty());
    EXPECT_FALSE(layer.backward_input(dy, pass, stash, filler).defined());
    EXPECT_EQ(stash.bytes(Until::kWeight), 3 * 7 * 5 * 8);
    layer.backward_weight(pass, stash);
    EXPECT_TRUE(stash.empty());
    expect_grads(*unit, leaves, kTight);
  }
}

struct MlpCase {
  MlpKind kind;
  bool tanh, bias;
};

TEST(Mlp, EqualsAutograd) {
  for (const auto& [hidden, ffn] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1}, {5, 7}, {24, 41}}) {
    for (const MlpCase c : std::vector<MlpCase>{{MlpKind::kGelu, true, true},
                                                {MlpKind::kGelu, false, true},
                                                {MlpKind::kSwiGlu, false, false},
                                                {MlpKind::kSwiGlu, false, true}}) {
      const bool gated = c.kind == MlpKind::kSwiGlu;
      auto unit = random_unit({{"gate", {ffn, hidden}, gated},
                               {"up", {ffn, hidden}},
                               {"gb", {ffn}, gated && c.bias},
                               {"ub", {ffn}, c.bias},
                               {"down", {hidden, ffn}},
                               {"db", {hidden}, c.bias}});
      ModelSpec spec;
      spec.mlp = c.kind;
      spec.gelu_tanh = c.tanh;
      MlpParams params{range(*unit, gated ? "gate" : "up", "up"), {}, range(*unit, "down"), {}};
      if (c.bias) {
        params.up_bias = range(*unit, gated ? "gb" : "ub", "ub");
        params.down_bias = range(*unit, "db");
      }
      const Mlp mlp(spec, 0, params, alone(), "x");
      AccumulatingSink sink;
      Leaves l;
      add_leaves(l, *unit);
      const Pass pass = make_pass({.batch = 1, .seq = 6}, sink);
      const at::Tensor x = leaf(normal({6, hidden}));
      const at::Tensor residual = normal({6, hidden});
      const at::Tensor dy = normal({6, hidden});
      const auto bias = [&](const char* name) { return c.bias ? l[name] : l[name] * 0.0; };
      const at::Tensor gate = x.mm(l["gate"].t()) + bias("gb");
      const at::Tensor up = x.mm(l["up"].t()) + bias("ub");
      const at::Tensor want =
          testing::ref_mlp_activation(spec, gate, up).mm(l["down"].t()) + bias("db");
      want.backward(dy);
      Stash stash;
      const at::Tensor y = mlp.forward(x.detach(), residual, pass, stash, true);
      EXPECT_LE(relative_error(y, want + residual), kExp);
      EXPECT_EQ(stash.bytes(), (6 * ffn * (gated ? 2 : 1) + 6 * hidden) * 8);
      EXPECT_LE(relative_error(mlp.backward_input(dy, pass, stash, [] {}), x.grad()), kExp);
      while (mlp.weight_piece(pass, stash)) {
      }
      EXPECT_TRUE(stash.empty());
      expect_grads(*unit, l, kExp);
    }
  }
}

struct AttentionCase {
  std::int64_t batch, seq, heads, kv_heads, head_dim, window;
  bool documents, qk_norm, bias, rope;
};

class AttentionTest : public ::testing::TestWithParam<AttentionCase> {
 protected:
  void build() {
    const AttentionCase& c = GetParam();
    spec_.hidden = hidden_;
    spec_.heads = c.heads;
    spec_.kv_heads = c.kv_heads;
    spec_.head_dim = c.head_dim;
    spec_.window = c.window;
    spec_.max_positions = c.seq;
    spec_.position = c.rope ? PositionKind::kRope : PositionKind::kLearned;
    const std::int64_t q = c.heads * c.head_dim;
    const std::int64_t kv = c.kv_heads * c.head_dim;
    unit_ = random_unit({{"q", {q, hidden_}},
                         {"k", {kv, hidden_}},
                         {"v", {kv, hidden_}},
                         {"qb", {q}, c.bias},
                         {"kb", {kv}, c.bias},
                         {"vb", {kv}, c.bias},
                         {"qn", {c.head_dim}, c.qk_norm},
                         {"kn", {c.head_dim}, c.qk_norm},
                         {"o", {hidden_, q}},
                         {"ob", {hidden_}, c.bias}});
    AttentionParams params{range(*unit_, "q", "v"), {}, {}, {}, range(*unit_, "o"), {}};
    if (c.bias) {
      params.qkv_bias = range(*unit_, "qb", "vb");
      params.out_bias = range(*unit_, "ob");
    }
    if (c.qk_norm) {
      params.q_norm = range(*unit_, "qn");
      params.k_norm = range(*unit_, "kn");
    }
    attention_ = std::make_unique<Attention>(
        spec_, 0, params, make_rotary(spec_, c.seq, at::kDouble, at::kCPU), alone_in_all(), "x");
  }

  at::Tensor reference(const at::Tensor& x, Leaves& l, const Pass& pass) const {
    const AttentionCase& c = GetParam();
    const auto project = [&](const std::string& name, std::int64_t heads) {
      const at::Tensor y = x.mm(l[name].t());
      const at::Tensor b = l[name + "b"];
      return (c.bias ? y + b : y).view({c.batch, c.seq, heads, c.head_dim});
    };
    at::Tensor q = project("q", c.heads);
    at::Tensor k = project("k", c.kv_heads);
    if (c.qk_norm) {
      q = testing::ref_norm(q, l["qn"], {}, spec_.norm_eps);
      k = testing::ref_norm(k, l["kn"], {}, spec_.norm_eps);
    }
    if (c.rope) {
      q = testing::ref_rope(q, pass.positions_BT, spec_.rope.theta);
      k = testing::ref_rope(k, pass.positions_BT, spec_.rope.theta);
    }
    const at::Tensor out =
        testing::ref_attention(q, k, project("v", c.kv_heads), c.window, pass.documents_BS);
    const at::Tensor y = out.reshape({c.batch * c.seq, -1}).mm(l["o"].t());
    return c.bias ? y + l["ob"] : y;
  }

  std::int64_t hidden_ = 6;
  ModelSpec spec_;
  std::unique_ptr<ParamUnit> unit_;
  std::unique_ptr<Attention> attention_;
};

TEST_P(AttentionTest, EqualsAutograd) {
  const AttentionCase& c = GetParam();
  build();
  AccumulatingSink sink;
  Pass pass = make_pass({.batch = c.batch, .seq = c.seq}, sink);
  if (c.documents) {
    pass.documents_BS = testing::below(2, {c.batch, c.seq}).cumsum(1);
    pass.positions_BT = testing::below(c.seq, {c.batch, c.seq});
  }
  Leaves leaves;
  add_leaves(leaves, *unit_);
  const at::Tensor x = leaf(normal({c.batch * c.seq, hidden_}));
  const at::Tensor dy = normal({c.batch * c.seq, hidden_});
  at::Tensor want = reference(x, leaves, pass);
  for (const auto& [name, tensor] : leaves) want = want + 0.0 * tensor.sum();
  want.backward(dy);
  Stash stash;
  EXPECT_LE(relative_error(attention_->forward(x.detach(), pass, stash, true), want), kExp);
  EXPECT_LE(relative_error(attention_->backward_input(dy, pass, stash, [] {}), x.grad()), kExp);
  EXPECT_EQ(stash.bytes(Until::kInput), 0);
  while (attention_->weight_piece(pass, stash)) {
  }
  EXPECT_TRUE(stash.empty());
  expect_grads(*unit_, leaves, kExp);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionTest,
    ::testing::Values(AttentionCase{1, 1, 1, 1, 2, 0, false, false, false, true},
                      AttentionCase{2, 7, 3, 3, 4, 0, false, false, true, false},   // MHA, learned
                      AttentionCase{2, 33, 4, 2, 6, 0, false, false, false, true},  // GQA
                      AttentionCase{1, 70, 6, 1, 8, 0, false, false, true, true},
                      AttentionCase{2, 19, 4, 2, 10, 0, false, true, false, true},  // qk-norm
                      AttentionCase{2, 40, 2, 1, 4, 5, false, false, false, true},  // window
                      AttentionCase{1, 9, 2, 2, 4, 1, false, true, true, true},
                      AttentionCase{3, 37, 4, 2, 4, 0, true, false, false, true},  // documents
                      AttentionCase{2, 81, 2, 1, 16, 6, true, true, true, true}));

// Peak memory of both passes grows with T, not with T^2.
TEST(Attention, case_082_peak_is_linear_in_the_sequence) {
  const auto peak = [](std::int64_t seq) {
    MemoryOwner owner;
    const ScopedMemoryOwner scope(&owner);
    auto unit =
        random_unit({{"q", {8, 8}}, {"k", {8, 8}}, {"v", {8, 8}}, {"o", {8, 8}}}, at::kFloat);
    ModelSpec spec;
    spec.heads = spec.kv_heads = 2;
    spec.head_dim = 4;
    spec.position = PositionKind::kLearned;
    const Attention attention(spec, 0, {range(*unit, "q", "v"), {}, {}, {}, range(*unit, "o"), {}},
                              {}, alone_in_all(), "x");
    AccumulatingSink sink;
    const Pass pass = make_pass({.batch = 1, .seq = seq}, sink);
    const at::Tensor x = normal({seq, 8}).to(at::kFloat);
    owner.reset_peak();
    Stash stash;
    attention.backward_input(attention.forward(x, pass, stash, true), pass, stash, [] {});
    return owner.peak().total();
  };
  const std::int64_t first = peak(512);
  const std::int64_t second = peak(1024) - first;
  const std::int64_t third = peak(2048) - first - second;
  EXPECT_LE(static_cast<double>(third), 2.05 * static_cast<double>(second));
}

struct HeadCase {
  std::int64_t batch, seq, hidden, vocab, chunk;
  double z;
  bool centred;
};

void check_head(const HeadCase& c) {
  auto unit =
      random_unit({{"g", {c.hidden}}, {"b", {c.hidden}, c.centred}, {"w", {c.vocab, c.hidden}}});
  ModelSpec spec;
  Head head(spec, *unit,
            {range(*unit, "g"), c.centred ? range(*unit, "b") : ParamRange{}, range(*unit, "w")},
            alone(), c.chunk);
  AccumulatingSink sink;
  Pass pass = make_pass(
      {.batch = c.batch, .seq = c.seq, .vocab = c.vocab, .loss_scale = 0.37, .z_loss = c.z}, sink);
  pass.labels_BT.masked_fill_(testing::below(3, {c.batch, c.seq}).eq(0), -100);
  LossSums sums;
  pass.sums = &sums;
  Leaves l;
  add_leaves(l, *unit);
  const at::Tensor x = leaf(normal({c.batch * c.seq, c.hidden}));
  const at::Tensor n =
      testing::ref_norm(x, l["g"], c.centred ? l["b"] : at::Tensor(), spec.norm_eps);
  const at::Tensor logits = n.mm(l["w"].t());
  const at::Tensor labels = pass.labels_BT.view({-1});
  const at::Tensor want = 0.37 * testing::ref_loss(logits, labels, c.z);
  (want + 0.0 * l["b"].sum()).backward();
  Stash stash;
  NoFiller filler;
  EXPECT_LE(relative_error(head.forward(x.detach(), pass, stash), want), kTight);
  EXPECT_EQ(sums.tokens, labels.ne(-100).sum().item<std::int64_t>());
  EXPECT_EQ(stash.bytes(), c.batch * c.seq * c.hidden * 8);
  EXPECT_LE(relative_error(head.backward_input({}, pass, stash, filler), x.grad()), kExp);
  head.backward_weight(pass, stash);
  EXPECT_TRUE(stash.empty());
  expect_grads(*unit, l, kExp);
  pass.mode = Mode::kEval;
  pass.grads = nullptr;
  EXPECT_LE(relative_error(head.forward(x.detach(), pass, stash), want), kTight);
  pass.mode = Mode::kDecode;
  const at::Tensor last = logits.view({c.batch, c.seq, c.vocab}).select(1, c.seq - 1);
  EXPECT_LE(relative_error(head.forward(x.detach(), pass, stash), last), kTight);
}

TEST(Head, EqualsAutograd) {
  check_head({1, 1, 2, 2, 512, 0.0, false});
  check_head({2, 7, 5, 13, 4, 0.0, false});
  check_head({2, 9, 16, 33, 5, 0.01, true});
  check_head({3, 8, 7, 129, 24, 1e-3, false});
}

// Logits exist for one chunk: the peak does not grow with positions x vocabulary. The second step's
// peak is the first's (case 083).
TEST(Head, case_082_case_083_logits_of_one_chunk) {
  const auto beyond_rows = [](std::int64_t seq, std::int64_t vocab) {
    MemoryOwner owner;
    const ScopedMemoryOwner scope(&owner);
    auto unit = random_unit({{"g", {4}}, {"w", {vocab, 4}}}, at::kFloat);
    ModelSpec spec;
    Head head(spec, *unit, {range(*unit, "g"), {}, range(*unit, "w")}, alone(), 64);
    AccumulatingSink sink;
    const Pass pass = make_pass({.batch = 1, .seq = seq, .vocab = vocab}, sink);
    const at::Tensor x = normal({seq, 4}).to(at::kFloat);
    const std::int64_t before = owner.live().total();
    std::int64_t first = 0;
    for (int step = 0; step < 3; ++step) {
      owner.reset_peak();
      Stash stash;
      head.forward(x, pass, stash);
      EXPECT_EQ(owner.peak()[MemoryCategory::kBuffers], 64 * vocab * 4);
      if (step == 0) first = owner.peak().total();
      EXPECT_EQ(owner.peak().total(), first);
    }
    EXPECT_EQ(owner.live().total(), before);
    return first - before - 64 * vocab * 4;
  };
  const std::int64_t rows = 1024 * 4 * 4;  // one [N, D] tensor
  for (const std::int64_t vocab : {1024, 16384}) EXPECT_LE(beyond_rows(1024, vocab), 4 * rows);
}

// Mean losses 4.0 (one trained token) and 2.0 (three): the step's loss is 2.5, not 3.0.
TEST(Head, case_002_tokens_weigh_alike_in_every_microbatch) {
  auto unit = random_unit({{"g", {1}}, {"b", {1}}, {"w", {3, 1}}});
  unit->param("g").value.zero_();
  unit->param("b").value.fill_(1.0);
  const at::Tensor p = at::tensor(std::vector<double>{-4.0, -2.0, 0.0}).exp();
  unit->param("w").value.copy_(
      (p - at::tensor(std::vector<double>{0.0, 0.0, 0.0})).log().view({3, 1}));
  unit->param("w").value[2].fill_(std::log(1.0 - std::exp(-4.0) - std::exp(-2.0)));
  ModelSpec spec;
  Head head(spec, *unit, {range(*unit, "g"), range(*unit, "b"), range(*unit, "w")}, alone(), 512);
  AccumulatingSink sink;
  const at::Tensor x = normal({6, 1});
  Pass pass = make_pass({.batch = 2, .seq = 3, .vocab = 3, .loss_scale = 0.25}, sink);
  pass.labels_BT = at::tensor(std::vector<std::int64_t>{-100, 0, -100, 1, 1, 1}).view({2, 3});
  Stash stash;
  EXPECT_NEAR(head.forward(x, pass, stash).item<double>(), 2.5, 1e-14);
  const at::Tensor whole = unit->flat_grad().clone();
  unit->zero_grads();
  double loss = 0.0;
  for (std::int64_t m = 0; m < 2; ++m) {
    Pass part = pass;
    part.labels_BT = pass.labels_BT.narrow(0, m, 1);
    part.positions_BT = pass.positions_BT.narrow(0, m, 1);
    Stash own;
    loss += head.forward(x.narrow(0, 3 * m, 3), part, own).item<double>();
  }
  EXPECT_NEAR(loss, 2.5, 1e-14);
  EXPECT_LE(relative_error(unit->flat_grad(), whole), kTight);
}

}  // namespace
}  // namespace quatrain
