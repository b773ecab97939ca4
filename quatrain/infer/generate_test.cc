// SPDX-License-Identifier: Apache-2.0
// Decoding with a cache against the whole forward, in float64, for every kind of attention.
#include "quatrain/infer/generate.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "quatrain/base/error.h"
#include "quatrain/base/rng.h"
#include "quatrain/nn/kv_cache.h"
#include "quatrain/spec/test_models.h"

namespace quatrain {
namespace {

constexpr std::int64_t kVocab = 37;

ModelSpec rotary(Family family) {
  ModelSpec spec;
  spec.name = "tiny";
  spec.family = family;
  spec.vocab = kVocab;
  spec.hidden = 24;
  spec.layers = 3;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.head_dim = 6;
  spec.ffn = 32;
  spec.max_positions = 24;
  return spec;
}
ModelSpec gpt2() { return as_gpt2(rotary(Family::kLlama)); }
ModelSpec windowed() {
  ModelSpec spec = rotary(Family::kQwen3);
  spec.head_dim = 8;
  spec.qk_norm = true;
  spec.window = 4;
  spec.window_layers = {true, false, true};
  return spec;
}
std::vector<ModelSpec> all_specs() { return {gpt2(), rotary(Family::kLlama), windowed()}; }

Model make_model(const ModelSpec& spec) {
  Model model(spec, {.dtype = at::kDouble});
  model.allocate(false);
  model.initialise(3);
  for (const auto& unit : model.units()) unit->flat_value().mul_(8.0);
  return model;
}

at::Tensor tokens(std::int64_t batch, std::int64_t count) {
  const RandomStream stream(5, "tokens");
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < batch * count; ++i) {
    ids.push_back(static_cast<std::int64_t>(stream.below(static_cast<std::uint64_t>(i), kVocab)));
  }
  return at::tensor(ids, at::TensorOptions(at::kLong)).view({batch, count});
}

// Logits of the last position of `tokens_BT`, which begin at `position`; no cache: the whole.
at::Tensor decode(Model& model, const at::Tensor& tokens_BT, std::int64_t position,
                  KvCache* cache) {
  Pass pass;
  pass.mode = Mode::kDecode;
  pass.tokens_BT = tokens_BT;
  pass.positions_BT =
      at::arange(position, position + tokens_BT.size(1)).expand_as(tokens_BT).contiguous();
  pass.cache = cache;
  std::vector<Stash> stashes;
  return forward_all(model, tokens_BT, pass, stashes);
}

double relative_error(const at::Tensor& a, const at::Tensor& b) {
  return a.sub(b).abs().max().item<double>() / b.abs().max().item<double>();
}

// Greedy continuation by whole forwards.
std::vector<std::int64_t> greedy_by_hand(Model& model, at::Tensor text_1T, std::int64_t count) {
  std::vector<std::int64_t> made;
  for (std::int64_t i = 0; i < count; ++i) {
    const at::Tensor best = decode(model, text_1T, 0, nullptr).argmax(-1, true);
    made.push_back(best.item<std::int64_t>());
    text_1T = at::cat({text_1T, best}, 1);
  }
  return made;
}

TEST(Decode, CachedLogitsEqualTheWholeForward) {
  for (const ModelSpec& spec : all_specs()) {
    Model model = make_model(spec);
    const at::Tensor text_BT = tokens(3, 19);
    KvCache cache({spec.layers, 3, 19, spec.kv_heads, spec.head_dim}, at::kDouble, at::kCPU);
    std::int64_t begin = 0;
    for (const std::int64_t count : {6, 1, 1, 4, 1, 6}) {
      const at::Tensor cached =
          decode(model, text_BT.narrow(1, begin, count).contiguous(), begin, &cache);
      begin += count;
      const at::Tensor whole = decode(model, text_BT.narrow(1, 0, begin).contiguous(), 0, nullptr);
      EXPECT_LT(relative_error(cached, whole), 1e-12) << static_cast<int>(spec.family);
    }
  }
}

// The evaluation's loss is another path through the head: the same probabilities.
TEST(Decode, LogitsGiveTheEvaluationLoss) {
  for (const ModelSpec& spec : all_specs()) {
    Model model = make_model(spec);
    const at::Tensor text_BT = tokens(1, 12);
    Pass pass;
    pass.mode = Mode::kEval;
    pass.tokens_BT = text_BT.narrow(1, 0, 11).contiguous();
    pass.positions_BT = at::arange(11).view({1, 11});
    pass.labels_BT = text_BT.narrow(1, 1, 11).contiguous();
    std::vector<Stash> stashes;
    const double loss = forward_all(model, pass.tokens_BT, pass, stashes).item<double>();
    double sum = 0.0;
    for (std::int64_t t = 0; t < 11; ++t) {
      const at::Tensor logits = decode(model, text_BT.narrow(1, 0, t + 1).contiguous(), 0, nullptr);
      sum -= logits.log_softmax(-1)[0][text_BT[0][t + 1].item<std::int64_t>()].item<double>();
    }
    EXPECT_NEAR(sum, loss, 1e-12 * loss);
  }
}

TEST(Generate, GreedyEqualsWholeForwards) {
  for (const ModelSpec& spec : all_specs()) {
    Model model = make_model(spec);
    const at::Tensor prompt = tokens(2, 5);
    const auto made = generate(model, prompt, {.max_tokens = 12, .sampling = {.temperature = 0.0}});
    ASSERT_EQ(made.size(), 2U);
    for (std::int64_t b = 0; b < 2; ++b) {
      EXPECT_EQ(made[static_cast<std::size_t>(b)],
                greedy_by_hand(model, prompt.narrow(0, b, 1), 12));
    }
  }
}

TEST(Generate, TheSeedDecides) {
  Model model = make_model(windowed());
  const std::vector<std::int64_t> prompt{1, 2, 3};
  auto text = [&](std::uint64_t seed) {
    return generate(model, prompt,
                    {.max_tokens = 16, .sampling = {.temperature = 2.0}, .seed = seed});
  };
  EXPECT_EQ(text(1), text(1));
  EXPECT_NE(text(1), text(2));
  // The first sequence of a batch draws what it draws alone.
  const at::Tensor twice = at::tensor({1, 2, 3, 1, 2, 3}).to(at::kLong).view({2, 3});
  const auto batch =
      generate(model, twice, {.max_tokens = 16, .sampling = {.temperature = 2.0}, .seed = 1});
  EXPECT_EQ(batch[0], text(1));
  EXPECT_NE(batch[0], batch[1]);
}

TEST(Generate, StopsAtStopIds) {
  Model model = make_model(gpt2());
  const std::vector<std::int64_t> prompt{4, 8, 15};
  GenerateOptions options{.max_tokens = 12, .sampling = {.temperature = 0.0}};
  const std::vector<std::int64_t> whole = generate(model, prompt, options);
  ASSERT_EQ(whole.size(), 12U);
  options.stop_ids = {whole[5]};
  std::vector<std::int64_t> heard;
  options.on_token = [&heard](std::int64_t, std::int64_t id) { heard.push_back(id); };
  const auto stop = std::find(whole.begin(), whole.end(), whole[5]);
  const std::vector<std::int64_t> expected(whole.begin(), stop);
  EXPECT_EQ(generate(model, prompt, options), expected);
  EXPECT_EQ(heard, expected);
}

// Past the context the model reads the last half of it again, from position 0.
TEST(Generate, SlidesBeyondTheContext) {
  for (const ModelSpec& spec : all_specs()) {
    Model model = make_model(spec);
    const std::int64_t context = 10;
    std::vector<std::int64_t> text;
    for (std::int64_t i = 0; i < 14; ++i) text.push_back((i * 7 + 1) % kVocab);
    const std::vector<std::int64_t> prompt = text;
    const std::int64_t count = 20;
    const auto made = generate(
        model, prompt, {.max_tokens = count, .sampling = {.temperature = 0.0}, .context = context});
    std::size_t begin = text.size() - 5;
    for (const std::int64_t id : made) {
      if (text.size() - begin > static_cast<std::size_t>(context)) begin = text.size() - 5;
      const std::vector<std::int64_t> seen(text.begin() + static_cast<std::ptrdiff_t>(begin),
                                           text.end());
      const at::Tensor seen_1T = at::tensor(seen, at::TensorOptions(at::kLong)).view({1, -1});
      EXPECT_EQ(id, decode(model, seen_1T, 0, nullptr).argmax().item<std::int64_t>());
      text.push_back(id);
    }
    EXPECT_EQ(made.size(), static_cast<std::size_t>(count));
    EXPECT_EQ(generate(model, prompt, {.max_tokens = 40}).size(), 40U);  // the spec's 24
  }
}

TEST(Generate, NamesBadRequests) {
  Model model = make_model(gpt2());
  EXPECT_THROW(generate(model, std::vector<std::int64_t>{}, {}), ConfigError);
  EXPECT_THROW(generate(model, std::vector<std::int64_t>{kVocab}, {}), DataError);
  EXPECT_THROW(generate(model, std::vector<std::int64_t>{-1}, {}), DataError);
  EXPECT_THROW(generate(model, std::vector<std::int64_t>{1}, {.max_tokens = -1}), ConfigError);
  EXPECT_THROW(generate(model, std::vector<std::int64_t>{1}, {.context = 25}), ConfigError);
  EXPECT_THROW(generate(model, std::vector<std::int64_t>{1}, {.sampling = {.top_p = 2.0}}),
               ConfigError);
  EXPECT_TRUE(generate(model, std::vector<std::int64_t>{1}, {.max_tokens = 0}).empty());
}

}  // namespace
}  // namespace quatrain
