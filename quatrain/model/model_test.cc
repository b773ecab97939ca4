// SPDX-License-Identifier: Apache-2.0
// Whole models in float64 against libtorch's autograd, every parameter kind by finite differences,
// and what must not change a bit: recomputation, the split of the backward, the cut of the batch.
// Shapes: B sequences, T positions, D hidden, V vocabulary.
#include "quatrain/model/model.h"

#include <algorithm>

#include "quatrain/base/error.h"
#include "quatrain/model/testing.h"
#include "quatrain/nn/kv_cache.h"
#include "quatrain/nn/testing.h"
#include "quatrain/spec/test_mixtures.h"

namespace quatrain {
namespace {

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
  ModelSpec base = tiny(Family::kLlama, false);
  base.window = 0;
  base.window_layers.clear();
  return {{"gpt2", tiny(Family::kGpt2, true)},
          {"gpt2 untied", tiny(Family::kGpt2, false)},
          {"llama", tiny(Family::kLlama, false)},
          {"llama tied", tiny(Family::kLlama, true)},
          {"qwen2", tiny(Family::kQwen2, true)},
          {"qwen2 untied", tiny(Family::kQwen2, false)},
          {"qwen3", tiny(Family::kQwen3, true)},
          {"qwen3 untied", tiny(Family::kQwen3, false)},
          {"mixtral", as_mixtral(base)},
          {"qwen3 moe", as_qwen3_moe(base)},
          {"deepseek", as_deepseek(base)},
          {"deepseek queries", with_whole_queries(as_deepseek(base))}};
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

Pass batch(GradSink& sink, std::int64_t sequences = 2, std::int64_t seq = 9) {
  Pass pass = testing::make_pass(
      {.batch = sequences, .seq = seq, .vocab = 37, .loss_scale = 0.11, .z_loss = 0.003}, sink);
  pass.router_z_loss = 0.02;
  pass.labels_BT.masked_fill_(testing::below(4, {sequences, seq}).eq(0), -100);
  return pass;
}

Pass part_of(const Pass& pass, std::int64_t begin, std::int64_t count) {
  Pass part = pass;
  for (at::Tensor* t : {&part.tokens_BT, &part.positions_BT, &part.documents_BS, &part.labels_BT,
                        &part.sample_ids_B}) {
    if (t->defined()) *t = t->narrow(0, begin, count);
  }
  return part;
}

// The head's loss and those of routers, as they are differentiated.
double objective(const at::Tensor& loss, const LossSums& sums, const Pass& pass) {
  return loss.item<double>() +
         pass.loss_scale * (sums.router.balance + pass.router_z_loss * sums.router.z);
}

double run(Model& model, const Pass& pass, LossSums* seen = nullptr) {
  LossSums sums;
  Pass summed = pass;
  summed.sums = &sums;
  std::vector<Stash> stashes;
  const at::Tensor loss = forward_all(model, pass.tokens_BT, summed, stashes);
  backward_all(model, summed, stashes);
  for (const Stash& stash : stashes) EXPECT_TRUE(stash.empty());
  if (seen != nullptr) *seen = sums;
  return objective(loss, sums, pass);
}

double loss_alone(Model& model, Pass pass) {
  pass.mode = Mode::kEval;
  std::vector<Stash> stashes;
  return forward_all(model, pass.tokens_BT, pass, stashes).item<double>();
}

class NoSink final : public GradSink {
  void outer(const ParamRange&, const at::Tensor&, const at::Tensor&) override {}
  void rows(const ParamRange&, const at::Tensor&) override {}
  void indexed(const ParamRange&, const at::Tensor&, const at::Tensor&) override {}
};

// As in training, routers' losses with it.
double objective_alone(Model& model, Pass pass) {
  NoSink nothing;
  LossSums sums;
  pass.grads = &nothing;
  pass.sums = &sums;
  std::vector<Stash> stashes;
  return objective(forward_all(model, pass.tokens_BT, pass, stashes), sums, pass);
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
      if (documents) pass.documents_BS = testing::below(2, {2, 9}).cumsum(1);
      ReferenceModel reference(model, pass);
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
        if (!p.info.trainable) continue;  // selection biases
        const at::Tensor grads = p.grad.view({-1});
        const std::int64_t index = grads.abs().argmax().item<std::int64_t>();
        at::Tensor entry = p.value.view({-1}).narrow(0, index, 1);
        const double at = entry.item<double>();
        const double step = 1e-5 * std::max(1.0, std::abs(at));
        entry.fill_(at + step);
        const double above = objective_alone(model, pass);
        entry.fill_(at - step);
        const double below = objective_alone(model, pass);
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

// What routers saw is counted once, however often a block's forward runs.
TEST(Model, case_154_recomputation_counts_no_choice_twice) {
  for (const auto& [name, spec] : families()) {
    if (!spec.experts) continue;
    SCOPED_TRACE(name);
    Model plain = make(spec);
    AccumulatingSink sink;
    Pass pass = batch(sink, 3);
    LossSums want;
    run(plain, pass, &want);
    ReferenceModel reference(plain, pass);
    static_cast<void>(reference.logits());
    EXPECT_TRUE(want.router.loads_LE.to(at::kLong).equal(reference.loads_LE));
    EXPECT_GT(want.router.balance, 0.0);
    for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
      Model model = make(spec, {.recompute = recompute});
      LossSums seen;
      run(model, pass, &seen);
      EXPECT_TRUE(seen.router.loads_LE.equal(want.router.loads_LE));
      EXPECT_EQ(seen.router.balance, want.router.balance);
      EXPECT_EQ(seen.router.z, want.router.z);
      EXPECT_EQ(seen.router.rows, want.router.rows);
    }
    // A sequence that is missing counts in nothing.
    pass.sample_ids_B[1] = -1;
    LossSums fewer;
    run(plain, pass, &fewer);
    EXPECT_EQ(fewer.router.rows, want.router.rows / 3 * 2);
    EXPECT_EQ(fewer.router.loads_LE.sum().item<double>(),
              want.router.loads_LE.sum().item<double>() / 3 * 2);
  }
}

// Two experts get every row, the other two none: ordinary inputs, with gradients of zero.
TEST(Model, case_149_experts_without_rows) {
  const ModelSpec spec = families().back().spec;  // its biases choose
  for (const std::int64_t first : {0, 2}) {
    Model model = make(spec);
    at::Tensor bias = model.param("model.layers.1.mlp.gate.e_score_correction_bias").value;
    bias.fill_(-100.0);
    bias.narrow(0, first, 2).fill_(100.0);
    AccumulatingSink sink;
    const Pass pass = batch(sink);
    ReferenceModel reference(model, pass);
    const at::Tensor want = reference.loss();
    want.backward();
    LossSums seen;
    EXPECT_LE(std::abs(run(model, pass, &seen) / want.item<double>() - 1.0), 1e-12);
    EXPECT_EQ(seen.router.loads_LE[1][first].item<double>(), 18.0);
    EXPECT_EQ(seen.router.loads_LE[1][(first + 2) % 4].item<double>(), 0.0);
    for (const auto& unit : model.units()) testing::expect_grads(*unit, reference.leaves, 1e-10);
  }
}

// The choice has no gradient; what the chosen experts make of it has.
TEST(Model, case_151_routers_learn_from_the_token_loss) {
  for (auto [name, spec] : families()) {
    if (!spec.experts) continue;
    SCOPED_TRACE(name);
    spec.experts->aux_loss_coef = 0.0;
    Model model = make(spec);
    AccumulatingSink sink;
    Pass pass = batch(sink);
    pass.router_z_loss = 0.0;
    run(model, pass);
    const bool mixtral = spec.family == Family::kMixtral;
    const std::string gate = mixtral ? "block_sparse_moe.gate.weight" : "mlp.gate.weight";
    const Param& router = model.param("model.layers.1." + gate);
    EXPECT_GT(router.grad.abs().max().item<double>(), 1e-4);
  }
}

// With every rule of the balance loss, and with jitter: along a random direction of all weights.
TEST(Model, RoutersOfEveryTrainingEqualFiniteDifferences) {
  using kernels::BalanceOver;
  for (auto [name, spec] : families()) {
    if (!spec.experts) continue;
    spec.experts->aux_loss_coef = 0.3;
    for (const RouterTraining& router :
         {RouterTraining{.balance = BalanceOver::kMicrobatch},
          RouterTraining{.balance = BalanceOver::kGlobalBatch},
          RouterTraining{.balance = BalanceOver::kMicrobatch, .jitter = 0.2}}) {
      Model model = make(spec, {.router = router});
      AccumulatingSink sink;
      Pass pass = batch(sink);
      pass.router_loads_LE =
          testing::below(9, {spec.layers, spec.experts->num_experts}).to(at::kDouble);
      run(model, pass);
      double slope = 0.0;
      std::vector<std::pair<at::Tensor, at::Tensor>> moves;
      for (const auto& unit : model.units()) {
        for (Param& p : unit->params()) {
          if (!p.grad.defined()) continue;
          moves.emplace_back(p.value, testing::normal(p.value.sizes().vec()));
          slope += (moves.back().second * p.grad).sum().item<double>();
        }
      }
      const auto moved = [&](double by) {
        for (auto& [value, direction] : moves) value.add_(direction, by);
        const double result = run(model, pass);
        for (auto& [value, direction] : moves) value.sub_(direction, by);
        return result;
      };
      EXPECT_NEAR((moved(1e-6) - moved(-1e-6)) / 2e-6, slope, 1e-5 * std::abs(slope)) << name;
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
    const at::Tensor want = ReferenceModel(model, pass).logits();
    KvCache cache(KvCache::size_of(spec, spec.kv_heads, 2, 8), at::kDouble, at::kCPU);
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
