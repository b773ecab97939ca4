// SPDX-License-Identifier: Apache-2.0
// Whole models in float64 against libtorch's autograd, every parameter kind by finite differences,
// and what must not change a bit: recomputation, the split of the backward, the cut of the batch.
// Shapes: B sequences, T positions, D hidden, V vocabulary.
#include "quatrain/model/model.h"

#include <ATen/ops/embedding.h>

#include <algorithm>

#include "quatrain/base/error.h"
#include "quatrain/nn/kv_cache.h"
#include "quatrain/nn/testing.h"

namespace quatrain {
namespace {

using testing::Leaves;
using testing::relative_error;
using testing::same_bits;

class Poison final : public ::testing::Environment {
  void SetUp() override { testing::poison_new_memory(); }
};
[[maybe_unused]] ::testing::Environment* const kPoison =
    ::testing::AddGlobalTestEnvironment(new Poison);

ModelSpec tiny(Family family, bool tied) {
  ModelSpec spec;
  spec.name = "tiny";
  spec.family = family;
  spec.vocab = 37;
  spec.hidden = 12;
  spec.layers = 2;
  spec.heads = 4;
  spec.kv_heads = family == Family::kGpt2 ? 4 : 2;
  spec.head_dim = family == Family::kGpt2 ? 3 : 6;
  spec.ffn = 19;
  spec.max_positions = 32;
  spec.tied = tied;
  if (family == Family::kGpt2) {
    spec.norm = NormKind::kLayerNorm;
    spec.mlp = MlpKind::kGelu;
    spec.position = PositionKind::kLearned;
    spec.qkv_bias = spec.out_bias = spec.mlp_bias = true;
    spec.init_scale_by_depth = true;
  }
  spec.qkv_bias = spec.qkv_bias || family == Family::kQwen2;
  spec.qk_norm = family == Family::kQwen3;
  if (family == Family::kLlama) {
    spec.window = 5;
    spec.window_layers = {false, true};
  }
  return spec;
}

struct Named {
  const char* name;
  ModelSpec spec;
};
std::vector<Named> families() {
  return {{"gpt2", tiny(Family::kGpt2, true)},    {"gpt2 untied", tiny(Family::kGpt2, false)},
          {"llama", tiny(Family::kLlama, false)}, {"llama tied", tiny(Family::kLlama, true)},
          {"qwen2", tiny(Family::kQwen2, true)},  {"qwen2 untied", tiny(Family::kQwen2, false)},
          {"qwen3", tiny(Family::kQwen3, true)},  {"qwen3 untied", tiny(Family::kQwen3, false)}};
}

Model make(const ModelSpec& spec, BuildOptions options = {}) {
  options.dtype = at::kDouble;
  options.head_chunk_tokens = 7;
  Model model(spec, options);
  model.allocate(true);
  for (const auto& unit : model.units()) {
    for (Param& p : unit->params()) {  // gains and biases off their special values
      p.info.init = p.info.init == Init::kOnes ? Init::kNormal : p.info.init;
      if (p.info.init == Init::kZeros) p.info.init = Init::kNormal;
      p.info.init_std = p.local_shape.size() == 1 ? 1.0 : 0.3;
    }
  }
  model.initialise(5);
  return model;
}

// The model once more: y = reference(leaves).
class Reference {
 public:
  Reference(Model& model, const Pass& pass) : spec_(model.spec()), pass_(pass) {
    for (const auto& unit : model.units()) testing::add_leaves(leaves, *unit);
  }
  at::Tensor logits() {
    const bool gpt2 = spec_.family == Family::kGpt2;
    const std::string top = gpt2 ? "transformer." : "model.";
    const at::Tensor table = leaves.at(top + (gpt2 ? "wte.weight" : "embed_tokens.weight"));
    at::Tensor x = at::embedding(table, pass_.tokens_BT);
    if (gpt2) x = x + at::embedding(leaves.at(top + "wpe.weight"), pass_.positions_BT);
    for (std::int64_t i = 0; i < spec_.layers; ++i) {
      x = block(x, top + (gpt2 ? "h." : "layers.") + std::to_string(i) + ".", i);
    }
    x = norm(x, top + (gpt2 ? "ln_f" : "norm"));
    return x.matmul((spec_.tied ? table : leaves.at("lm_head.weight")).t());
  }
  at::Tensor loss() {
    return pass_.loss_scale * testing::ref_loss(logits().view({-1, spec_.vocab}),
                                                pass_.labels_BT.reshape({-1}), pass_.z_loss);
  }
  Leaves leaves;

 private:
  at::Tensor norm(const at::Tensor& x, const std::string& name) {
    const auto bias = leaves.find(name + ".bias");
    return testing::ref_norm(x, leaves.at(name + ".weight"),
                             bias == leaves.end() ? at::Tensor() : bias->second, spec_.norm_eps);
  }
  at::Tensor project(const at::Tensor& x, const std::string& name) {
    const at::Tensor y = x.matmul(leaves.at(name + ".weight").t());
    const auto bias = leaves.find(name + ".bias");
    return bias == leaves.end() ? y : y + bias->second;
  }
  at::Tensor attention(const at::Tensor& x, const std::string& in, std::int64_t layer) {
    const auto heads = [&](const char* name) {
      return project(x, in + name).view({x.size(0), x.size(1), -1, spec_.head_dim});
    };
    at::Tensor q = heads("q_proj");
    at::Tensor k = heads("k_proj");
    if (spec_.qk_norm) {
      q = norm(q, in + "q_norm");
      k = norm(k, in + "k_norm");
    }
    if (spec_.position == PositionKind::kRope) {
      q = testing::ref_rope(q, pass_.positions_BT, spec_.rope.theta);
      k = testing::ref_rope(k, pass_.positions_BT, spec_.rope.theta);
    }
    const at::Tensor out = testing::ref_attention(q, k, heads("v_proj"), spec_.layer_window(layer),
                                                  pass_.documents_BT);
    return project(out.reshape({x.size(0), x.size(1), -1}),
                   in + (spec_.family == Family::kGpt2 ? "c_proj" : "o_proj"));
  }
  at::Tensor block(const at::Tensor& x, const std::string& in, std::int64_t layer) {
    const bool gpt2 = spec_.family == Family::kGpt2;
    const at::Tensor n1 = norm(x, in + (gpt2 ? "ln_1" : "input_layernorm"));
    const at::Tensor h = x + attention(n1, in + (gpt2 ? "attn." : "self_attn."), layer);
    const at::Tensor n2 = norm(h, in + (gpt2 ? "ln_2" : "post_attention_layernorm"));
    const at::Tensor up = project(n2, in + (gpt2 ? "mlp.c_fc" : "mlp.up_proj"));
    const at::Tensor gate = gpt2 ? up : project(n2, in + "mlp.gate_proj");
    return h + project(testing::ref_mlp_activation(spec_, gate, up),
                       in + (gpt2 ? "mlp.c_proj" : "mlp.down_proj"));
  }

  const ModelSpec& spec_;
  const Pass& pass_;
};

Pass batch(GradSink& sink, std::int64_t sequences = 2, std::int64_t seq = 9) {
  Pass pass = testing::make_pass(
      {.batch = sequences, .seq = seq, .vocab = 37, .loss_scale = 0.11, .z_loss = 0.003}, sink);
  pass.labels_BT.masked_fill_(testing::below(4, {sequences, seq}).eq(0), -100);
  return pass;
}

Pass part_of(const Pass& pass, std::int64_t begin, std::int64_t count) {
  Pass part = pass;
  for (at::Tensor* t : {&part.tokens_BT, &part.positions_BT, &part.documents_BT, &part.labels_BT,
                        &part.sample_ids_B}) {
    if (t->defined()) *t = t->narrow(0, begin, count);
  }
  return part;
}

double run(Model& model, const Pass& pass) {
  std::vector<Stash> stashes;
  const double loss = forward_all(model, pass.tokens_BT, pass, stashes).item<double>();
  backward_all(model, pass, stashes);
  for (const Stash& stash : stashes) EXPECT_TRUE(stash.empty());
  return loss;
}

double loss_alone(Model& model, Pass pass) {
  pass.mode = Mode::kEval;
  std::vector<Stash> stashes;
  return forward_all(model, pass.tokens_BT, pass, stashes).item<double>();
}

std::vector<at::Tensor> gradients(Model& model) {
  std::vector<at::Tensor> result;
  for (const auto& unit : model.units()) {
    result.push_back(unit->flat_grad().defined() ? unit->flat_grad().clone() : at::Tensor());
    unit->zero_grads();
  }
  return result;
}

void expect_same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << "unit " << i;
}

void expect_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b,
                  double tolerance) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_LE(relative_error(a[i], b[i]), tolerance) << "unit " << i;
  }
}

// 1e-10: chains of exp in attention, activation and loss.
TEST(Model, EqualsAutograd) {
  for (const auto& [name, spec] : families()) {
    for (const bool documents : {false, true}) {
      SCOPED_TRACE(name);
      Model model = make(spec);
      AccumulatingSink sink;
      Pass pass = batch(sink);
      if (documents) pass.documents_BT = testing::below(2, {2, 9}).cumsum(1);
      Reference reference(model, pass);
      const at::Tensor want = reference.loss();
      want.backward();
      EXPECT_LE(std::abs(run(model, pass) / want.item<double>() - 1.0), 1e-12);
      for (const auto& unit : model.units()) {
        testing::expect_grads(*unit, reference.leaves, 1e-10);
      }
    }
  }
}

// One entry of every parameter, with memory full of NaN and gradients summed over two
// micro-batches.
TEST(Model, case_137_finite_differences_of_every_parameter) {
  for (const auto& [name, spec] : families()) {
    SCOPED_TRACE(name);
    Model model = make(spec);
    AccumulatingSink sink;
    const Pass pass = batch(sink, 2, 5);
    for (std::int64_t m = 0; m < 2; ++m) run(model, part_of(pass, m, 1));
    for (const auto& unit : model.units()) {
      for (Param& p : unit->params()) {
        const at::Tensor grads = p.grad.view({-1});
        const std::int64_t index = grads.abs().argmax().item<std::int64_t>();
        at::Tensor entry = p.value.view({-1}).narrow(0, index, 1);
        const double at = entry.item<double>();
        const double step = 1e-5 * std::max(1.0, std::abs(at));
        entry.fill_(at + step);
        const double above = loss_alone(model, pass);
        entry.fill_(at - step);
        const double below = loss_alone(model, pass);
        entry.fill_(at);
        const double want = (above - below) / (2.0 * step);
        EXPECT_NEAR(grads[index].item<double>(), want, 2e-6 * std::max(std::abs(want), 1e-3))
            << p.info.name;
      }
    }
  }
}

std::vector<at::Tensor> with_order(Model& model, const Pass& pass,
                                   std::vector<std::int64_t> order) {
  const auto layers = model.layers();
  std::vector<std::vector<Stash>> stashes(order.size());
  const auto part = [&](std::int64_t m) { return part_of(pass, m, 1); };
  for (std::size_t m = 0; m < order.size(); ++m) {
    const Pass own = part(static_cast<std::int64_t>(m));
    forward_all(model, own.tokens_BT, own, stashes[m]);
  }
  NoFiller filler;
  for (std::size_t m = 0; m < order.size(); ++m) {
    const Pass own = part(static_cast<std::int64_t>(m));
    at::Tensor dy;
    for (std::size_t i = layers.size(); i-- > 0;) {
      dy = layers[i]->backward_input(dy, own, stashes[m][i], filler);
      EXPECT_EQ(stashes[m][i].bytes(Until::kInput), 0);
    }
  }
  for (const std::int64_t m : order) {
    for (std::size_t i = layers.size(); i-- > 0;) {
      layers[i]->backward_weight(part(m), stashes[static_cast<std::size_t>(m)][i]);
    }
  }
  return gradients(model);
}

TEST(Model, HalvesEqualTheFusedBackwardBitForBit) {
  for (const auto& [name, spec] : families()) {
    SCOPED_TRACE(name);
    // A tied table is written by the heads' forwards too, in another order than fused.
    if (spec.tied) continue;
    Model model = make(spec);
    AccumulatingSink sink;
    const Pass pass = batch(sink, 3, 6);
    for (std::int64_t m = 0; m < 3; ++m) run(model, part_of(pass, m, 1));
    const std::vector<at::Tensor> fused = gradients(model);
    expect_same_bits(with_order(model, pass, {0, 1, 2}), fused);
    const std::vector<at::Tensor> other = with_order(model, pass, {2, 0, 1});
    expect_close(other, fused, 1e-12);
    expect_same_bits(with_order(model, pass, {2, 0, 1}), other);
  }
}

TEST(Model, RecomputationKeepsEveryBit) {
  for (auto [name, spec] : families()) {
    SCOPED_TRACE(name);
    spec.residual_dropout = spec.embedding_dropout = 0.2;
    std::vector<at::Tensor> want;
    double loss = 0.0;
    AccumulatingSink sink;
    const Pass pass = batch(sink);
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      Model model = make(spec, {.recompute = recompute});
      const double got = run(model, pass);
      if (want.empty()) {
        loss = got;
        want = gradients(model);
      }
      EXPECT_EQ(got, loss);
      if (recompute != Recompute::kNone) expect_same_bits(gradients(model), want);
    }
  }
}

// Masks belong to samples: one batch of four sequences, or four, or two of two.
TEST(Model, DropoutDoesNotSeeTheCutOfTheBatch) {
  ModelSpec spec = tiny(Family::kGpt2, false);
  Model dry = make(spec);
  spec.residual_dropout = spec.embedding_dropout = 0.3;
  Model model = make(spec);
  AccumulatingSink sink;
  Pass pass = batch(sink, 4, 5);
  pass.sample_ids_B = pass.sample_ids_B + 1000;
  const double loss = run(model, pass);
  const std::vector<at::Tensor> whole = gradients(model);
  for (const std::int64_t count : {1, 2}) {
    double sum = 0.0;
    for (std::int64_t m = 0; m < 4; m += count) sum += run(model, part_of(pass, m, count));
    EXPECT_NEAR(sum, loss, 1e-12 * loss);
    expect_close(gradients(model), whole, 1e-12);
  }
  EXPECT_GT(std::abs(run(dry, pass) - loss), 1e-6);
  EXPECT_NEAR(loss_alone(model, pass), loss_alone(dry, pass), 1e-14);
  Pass later = pass;
  later.step = 1;
  EXPECT_NE(run(model, later), loss);
}

TEST(Model, case_002_microbatches_with_one_and_three_trained_tokens) {
  Model model = make(tiny(Family::kLlama, false));
  AccumulatingSink sink;
  Pass pass = batch(sink, 2, 4);
  pass.loss_scale = 0.25;
  pass.labels_BT =
      at::tensor(std::vector<std::int64_t>{-100, -100, 3, -100, 1, 2, -100, 9}).view({2, 4});
  const double whole = run(model, pass);
  const std::vector<at::Tensor> want = gradients(model);
  double sum = 0.0;
  for (std::int64_t m = 0; m < 2; ++m) sum += run(model, part_of(pass, m, 1));
  EXPECT_NEAR(sum, whole, 1e-13);
  expect_close(gradients(model), want, 1e-12);
}

TEST(Model, FrozenParametersTakePartInNothingOfTheWeightHalf) {
  const ModelSpec spec = tiny(Family::kQwen3, false);
  Model all = make(spec);
  AccumulatingSink sink;
  const Pass pass = batch(sink);
  run(all, pass);
  for (const std::vector<std::string>& trainable :
       std::vector<std::vector<std::string>>{{"*q_proj.weight"},
                                             {"*k_norm*", "*gate_proj*"},
                                             {"*layernorm*"},
                                             {"lm_head*"},
                                             {"*embed*"},
                                             {"*o_proj*", "*v_proj*", "*down*"}}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      Model model = make(spec, {.recompute = recompute, .trainable = trainable});
      run(model, pass);
      for (const auto& unit : model.units()) {
        for (const Param& p : unit->params()) {
          ASSERT_EQ(p.grad.defined(), p.info.trainable);
          if (!p.info.trainable) continue;
          EXPECT_LE(relative_error(p.grad, all.param(p.info.name).grad), 1e-12) << p.info.name;
        }
      }
    }
  }
  BuildOptions wrong;
  wrong.trainable = {"*.nothing"};
  EXPECT_THROW(Model(spec, wrong), ConfigError);
}

// With a cache, token by token or in pieces: the logits of the whole prefix at once.
TEST(Model, DecodingWithACacheEqualsTheWholePrefix) {
  for (const auto& [name, spec] : families()) {
    SCOPED_TRACE(name);
    Model model = make(spec);
    AccumulatingSink sink;
    Pass pass = batch(sink, 2, 8);
    const at::Tensor want = Reference(model, pass).logits();
    KvCache cache({spec.layers, 2, 8, spec.kv_heads, spec.head_dim}, at::kDouble, at::kCPU);
    pass.mode = Mode::kDecode;
    pass.cache = &cache;
    for (const auto& [begin, count] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 3}, {3, 1}, {4, 1}, {5, 3}}) {
      Pass piece = pass;
      piece.positions_BT = pass.positions_BT.narrow(1, begin, count);
      std::vector<Stash> stashes;
      const at::Tensor got =
          forward_all(model, pass.tokens_BT.narrow(1, begin, count), piece, stashes);
      EXPECT_LE(relative_error(got, want.select(1, begin + count - 1)), 1e-12);
    }
  }
}

TEST(Model, RefusesWhatItCannotBuild) {
  ModelSpec spec = tiny(Family::kMixtral, false);
  EXPECT_THROW(Model(spec, BuildOptions{}), ConfigError);
  spec = tiny(Family::kLlama, false);
  spec.experts = Experts{};
  EXPECT_THROW(Model(spec, BuildOptions{}), ConfigError);
  Model model = make(tiny(Family::kLlama, false));
  EXPECT_THROW(static_cast<void>(model.param("model.norm.bias")), BugError);
  EXPECT_EQ(model.units().size(), 4U);
  EXPECT_EQ(model.units()[1]->name(), "layers.0");
}

}  // namespace
}  // namespace quatrain
