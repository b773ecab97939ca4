// SPDX-License-Identifier: Apache-2.0
// Routing against a plain loop over tokens, its gradients against autograd and finite differences.
#include "quatrain/kernels/router.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/log.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "quatrain/kernels/testing.h"

namespace quatrain::kernels {
namespace {

using testing::leaf;
using testing::random;
using testing::relative;

struct Named {
  const char* name;
  RouterRule rule;
  bool bias = false;
};
std::vector<Named> rules() {
  return {
      {"mixtral", {.top_k = 2}},
      {"top 1", {.top_k = 1, .normalise = false}},
      {"qwen3", {.top_k = 3, .normalise = false}},
      {"all", {.top_k = 12}},
      {"sigmoid", {.score = ScoreKind::kSigmoid, .top_k = 2, .scaling = 2.5}},
      {"sigmoid raw", {.score = ScoreKind::kSigmoid, .top_k = 2, .normalise = false}, true},
      {"softmax bias", {.top_k = 2}, true},
      {"deepseek",
       {.score = ScoreKind::kSigmoid, .top_k = 4, .scaling = 2.5, .groups = 4, .top_k_groups = 2},
       true},
      {"groups of one",
       {.score = ScoreKind::kSigmoid, .top_k = 3, .groups = 12, .top_k_groups = 5},
       true}};
}

constexpr std::int64_t kExperts = 12;

at::Tensor scores(const at::Tensor& logits, const RouterRule& rule) {
  return rule.score == ScoreKind::kSoftmax ? at::softmax(logits, -1) : at::sigmoid(logits);
}

// The experts of one token, chosen by sorting: (key, -index) falling.
std::vector<std::int64_t> choose(const std::vector<double>& keys, std::int64_t count) {
  std::vector<std::int64_t> order(keys.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return keys[static_cast<std::size_t>(a)] > keys[static_cast<std::size_t>(b)];
  });
  order.resize(static_cast<std::size_t>(count));
  return order;
}

std::vector<std::int64_t> reference_choice(const at::Tensor& logits_E, const at::Tensor& bias_E,
                                           const RouterRule& rule) {
  at::Tensor key =
      rule.score == ScoreKind::kSoftmax && !bias_E.defined() ? logits_E : scores(logits_E, rule);
  if (bias_E.defined()) key = key + bias_E;
  std::vector<double> keys;
  for (std::int64_t e = 0; e < kExperts; ++e) keys.push_back(key[e].item<double>());
  if (rule.top_k_groups < rule.groups) {
    const std::int64_t size = kExperts / rule.groups;
    std::vector<double> best;
    for (std::int64_t g = 0; g < rule.groups; ++g) {
      std::vector<double> group(keys.begin() + g * size, keys.begin() + (g + 1) * size);
      std::sort(group.rbegin(), group.rend());
      best.push_back(group[0] + (size > 1 ? group[1] : 0.0));
    }
    const std::vector<std::int64_t> kept = choose(best, rule.top_k_groups);
    for (std::int64_t e = 0; e < kExperts; ++e) {
      if (std::find(kept.begin(), kept.end(), e / size) == kept.end()) {
        keys[static_cast<std::size_t>(e)] = -1e9;
      }
    }
  }
  return choose(keys, rule.top_k);
}

at::Tensor bias_of(const Named& named, at::ScalarType dtype) {
  return named.bias ? random({kExperts}, dtype).mul_(0.3) : at::Tensor();
}

TEST(Router, ChoosesAsALoopOverTokensDoes) {
  for (const Named& named : rules()) {
    SCOPED_TRACE(named.name);
    // Half of the rows have logits of a few values only: ties everywhere.
    at::Tensor logits = random({80, kExperts}, at::kDouble);
    logits.narrow(0, 40, 40).copy_(logits.narrow(0, 40, 40).mul(1.5).round());
    at::Tensor bias = bias_of(named, at::kDouble);
    if (bias.defined()) bias.copy_(bias.mul(10).round().mul(0.125));
    const at::Tensor chosen = choose_experts(logits, bias, named.rule);
    for (std::int64_t n = 0; n < logits.size(0); ++n) {
      const std::vector<std::int64_t> want = reference_choice(logits[n], bias, named.rule);
      for (std::int64_t j = 0; j < named.rule.top_k; ++j) {
        ASSERT_EQ(chosen[n][j].item<std::int64_t>(), want[static_cast<std::size_t>(j)])
            << "row " << n << " choice " << j;
      }
    }
  }
}

TEST(Router, EqualScoresGoToTheLowestIndex) {
  const at::Tensor logits = at::zeros({3, 6}, at::kFloat);
  const at::Tensor chosen = choose_experts(logits, {}, {.top_k = 3});
  for (std::int64_t n = 0; n < 3; ++n) {
    for (std::int64_t j = 0; j < 3; ++j) EXPECT_EQ(chosen[n][j].item<std::int64_t>(), j);
  }
  const RouterRule groups{.score = ScoreKind::kSigmoid, .top_k = 2, .groups = 3, .top_k_groups = 2};
  at::Tensor bias = at::zeros({6}, at::kFloat);
  bias[0] = -0.25;  // group 0 is the worst: experts 2 and 3 are first of equals
  const at::Tensor grouped = choose_experts(logits, bias, groups);
  EXPECT_EQ(grouped[0][0].item<std::int64_t>(), 2);
  EXPECT_EQ(grouped[0][1].item<std::int64_t>(), 3);
}

// A bias decides who is chosen, never with what weight.
TEST(Router, TheBiasDoesNotWeigh) {
  const RouterRule rule{.score = ScoreKind::kSigmoid, .top_k = 2, .normalise = false};
  const at::Tensor logits = random({20, 6}, at::kDouble);
  at::Tensor bias = at::zeros({6}, at::kDouble);
  bias[4] = 10.0;
  const at::Tensor chosen = choose_experts(logits, bias, rule);
  const at::Tensor weights = expert_weights(logits, chosen, rule);
  EXPECT_TRUE(chosen.select(1, 0).eq(4).all().item<bool>());
  EXPECT_LE(relative(weights.select(1, 0), at::sigmoid(logits.select(1, 4))), 1e-15);
}

at::Tensor reference_weights(const at::Tensor& logits, const at::Tensor& chosen,
                             const RouterRule& rule) {
  at::Tensor weights = scores(logits, rule).gather(1, chosen);
  if (rule.normalise) weights = weights / (weights.sum(1, true) + 1e-20);
  return weights * rule.scaling;
}

struct References {
  at::Tensor balance, z, entropy;
};
// Over sequences 0 and 2 of three: the second is missing.
References reference_losses(const at::Tensor& logits, const at::Tensor& chosen,
                            const RouterRule& rule, std::int64_t seq) {
  References sums{at::zeros({}, at::kDouble), at::zeros({}, at::kDouble),
                  at::zeros({}, at::kDouble)};
  for (const std::int64_t b : {0, 2}) {
    const at::Tensor own = logits.narrow(0, b * seq, seq);
    const at::Tensor raw = scores(own, rule);
    const at::Tensor p = raw / raw.sum(1, true);
    at::Tensor f = at::zeros({kExperts}, at::kDouble);
    for (std::int64_t t = 0; t < seq; ++t) {
      for (std::int64_t j = 0; j < rule.top_k; ++j) {
        f[chosen[b * seq + t][j].item<std::int64_t>()] +=
            static_cast<double>(kExperts) / static_cast<double>(rule.top_k * seq);
      }
    }
    sums.balance = sums.balance + static_cast<double>(seq) * (f * p.mean(0)).sum();
    sums.z = sums.z + own.logsumexp(1).pow(2).sum();
    sums.entropy = sums.entropy - (p * at::log(p)).sum();
  }
  return sums;
}

TEST(Router, WeightsLossesAndGradientsEqualAutograd) {
  const std::int64_t seq = 11;
  const RouterSequences sequences{seq, at::tensor({7, -1, 9}, at::kLong)};
  for (const Named& named : rules()) {
    SCOPED_TRACE(named.name);
    const at::Tensor x = random({3 * seq, kExperts}, at::kDouble);
    const at::Tensor chosen = choose_experts(x, bias_of(named, at::kDouble), named.rule);
    const at::Tensor dweights = random({3 * seq, named.rule.top_k}, at::kDouble);
    const RouterLossScales scales{.balance = 0.7, .z = 0.03};

    const at::Tensor logits = leaf(x);
    const at::Tensor weights = reference_weights(logits, chosen, named.rule);
    const References losses = reference_losses(logits, chosen, named.rule, seq);
    ((weights * dweights).sum() + scales.balance * losses.balance + scales.z * losses.z).backward();

    EXPECT_LE(relative(expert_weights(x, chosen, named.rule), weights.detach()), 1e-14);
    const RouterStatistics got = router_statistics(x, chosen, named.rule, sequences);
    EXPECT_NEAR(got.balance, losses.balance.item<double>(), 1e-12 * got.balance);
    EXPECT_NEAR(got.z, losses.z.item<double>(), 1e-12 * got.z);
    EXPECT_NEAR(got.entropy, losses.entropy.item<double>(), 1e-12 * got.entropy);
    EXPECT_EQ(got.rows, 2 * seq);
    EXPECT_EQ(got.loads_E.sum().item<double>(), static_cast<double>(2 * seq * named.rule.top_k));
    const at::Tensor grad = router_backward(dweights, x, chosen, named.rule, sequences, scales);
    EXPECT_LE(relative(grad, logits.grad()), 1e-13);
  }
}

// sum over rows of sum_e f_e p_e, of the rows of sequences 0 and 2 of three.
at::Tensor balance_of(const at::Tensor& logits, const RouterRule& rule, std::int64_t seq,
                      const at::Tensor& f_E) {
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (const std::int64_t b : {0, 2}) {
    const at::Tensor raw = scores(logits.narrow(0, b * seq, seq), rule);
    sum = sum + (f_E * raw / raw.sum(1, true)).sum();
  }
  return sum;
}

// One f for all rows: of their own choices, of given loads, of none.
TEST(Router, BalanceOverMicrobatchAndGlobalBatchEqualsAutograd) {
  const std::int64_t seq = 11;
  const at::Tensor samples = at::tensor({7, -1, 9}, at::kLong);
  for (const Named& named : rules()) {
    SCOPED_TRACE(named.name);
    const at::Tensor x = random({3 * seq, kExperts}, at::kDouble);
    const at::Tensor chosen = choose_experts(x, bias_of(named, at::kDouble), named.rule);
    at::Tensor counts = at::zeros({kExperts}, at::kDouble);
    for (std::int64_t i = 0; i < chosen.numel(); ++i) {
      const bool missing = i / named.rule.top_k / seq == 1;
      if (!missing) counts[chosen.view({-1})[i].item<std::int64_t>()] += 1.0;
    }
    const at::Tensor loads = at::arange(kExperts, at::kDouble);
    const auto share = [](const at::Tensor& l) { return l * double(kExperts) / l.sum(); };
    const std::vector<std::pair<RouterSequences, at::Tensor>> all{
        {{seq, samples, BalanceOver::kMicrobatch}, share(counts)},
        {{seq, samples, BalanceOver::kGlobalBatch, loads}, share(loads)},
        {{seq, samples, BalanceOver::kGlobalBatch}, at::ones({kExperts}, at::kDouble)}};
    for (const auto& [sequences, f] : all) {
      const at::Tensor logits = leaf(x);
      const at::Tensor want = balance_of(logits, named.rule, seq, f);
      want.backward();
      const RouterStatistics got = router_statistics(x, chosen, named.rule, sequences);
      EXPECT_NEAR(got.balance, want.item<double>(), 1e-12 * got.balance);
      const at::Tensor none = at::zeros({3 * seq, named.rule.top_k}, at::kDouble);
      const at::Tensor grad =
          router_backward(none, x, chosen, named.rule, sequences, {.balance = 1.0});
      EXPECT_LE((grad - logits.grad()).abs().max().item<double>(), 1e-13);
    }
  }
}

TEST(Router, GradientsEqualFiniteDifferences) {
  const RouterSequences sequences{4, at::tensor({0}, at::kLong)};
  for (const Named& named : rules()) {
    SCOPED_TRACE(named.name);
    const at::Tensor x = random({4, kExperts}, at::kDouble);
    const at::Tensor chosen = choose_experts(x, {}, named.rule);
    const at::Tensor dweights = random({4, named.rule.top_k}, at::kDouble);
    const auto value = [&](const at::Tensor& logits) {
      const RouterStatistics sums = router_statistics(logits, chosen, named.rule, sequences);
      return (expert_weights(logits, chosen, named.rule) * dweights).sum().item<double>() +
             0.4 * sums.balance + 0.02 * sums.z;
    };
    const at::Tensor grad =
        router_backward(dweights, x, chosen, named.rule, sequences, {.balance = 0.4, .z = 0.02});
    for (std::int64_t e = 0; e < kExperts; ++e) {
      at::Tensor moved = x.clone();
      moved[1][e] += 1e-5;
      const double above = value(moved);
      moved[1][e] -= 2e-5;
      EXPECT_NEAR(grad[1][e].item<double>(), (above - value(moved)) / 2e-5, 1e-7);
    }
  }
}

// Every row by itself: the same bits alone, in a batch, and on any team; float32 close to float64.
TEST(Router, RowsDoNotDependOnTheirPlace) {
  for (const Named& named : rules()) {
    SCOPED_TRACE(named.name);
    const at::Tensor x = random({300, kExperts}, at::kFloat);
    const at::Tensor dweights = random({300, named.rule.top_k}, at::kFloat);
    const RouterSequences sequences{100, at::tensor({0, 1, 2}, at::kLong)};
    const auto all = [&] {
      const at::Tensor chosen = choose_experts(x, {}, named.rule);
      return std::vector<at::Tensor>{
          chosen, expert_weights(x, chosen, named.rule),
          router_backward(dweights, x, chosen, named.rule, sequences, {.balance = 1, .z = 1})};
    };
    testing::with_threads(all, [](const auto& one, const auto& other) {
      for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].equal(other[i]));
    });
    const std::vector<at::Tensor> whole = all();
    const at::Tensor row = x.narrow(0, 250, 1).contiguous();
    EXPECT_TRUE(choose_experts(row, {}, named.rule).equal(whole[0].narrow(0, 250, 1)));
    const at::Tensor exact = expert_weights(x.to(at::kDouble), whole[0], named.rule);
    EXPECT_LE(relative(whole[1], exact), 1e-6);
  }
}

TEST(Router, RefusesRulesThatCannotBe) {
  const at::Tensor logits = random({2, 6}, at::kFloat);
  EXPECT_ANY_THROW(choose_experts(logits, {}, {.top_k = 7}));
  EXPECT_ANY_THROW(choose_experts(logits, {}, {.top_k = 2, .groups = 4}));
  EXPECT_ANY_THROW(choose_experts(logits, {}, {.top_k = 3, .groups = 3, .top_k_groups = 1}));
  EXPECT_ANY_THROW(choose_experts(logits.to(at::kBFloat16), {}, {.top_k = 1}));
}

// A loop that fills experts one choice after another.
TEST(Router, case_158_ExpertsTakeWhatTheyHaveRoomFor) {
  const std::int64_t experts = 6, k = 2;
  const RouterRule rule{.top_k = k};
  for (const double factor : {1.0, 1.25, 3.0}) {
    const at::Tensor logits =
        testing::random({40, experts}, at::kDouble)
            .add_(at::arange(experts, at::kDouble).mul(0.3));  // the last are liked best
    const at::Tensor chosen = choose_experts(logits, {}, rule);
    const at::Tensor weights = expert_weights(logits, chosen, rule);
    for (const DropBy by : {DropBy::kPosition, DropBy::kProbability}) {
      const ExpertCapacity capacity{factor, by};
      const at::Tensor limited = limit_experts(chosen, weights, experts, capacity);
      const auto room = static_cast<std::int64_t>(std::ceil(factor * 40 * k / experts));
      for (std::int64_t n = 0; n < 40; ++n) {
        for (std::int64_t j = 0; j < k; ++j) {
          const auto expert = chosen[n][j].item<std::int64_t>();
          const auto weight = weights[n][j].item<double>();
          std::int64_t ahead = 0;  // choices of this expert that are served first
          for (std::int64_t m = 0; m < 40; ++m) {
            for (std::int64_t i = 0; i < k; ++i) {
              if (chosen[m][i].item<std::int64_t>() != expert) continue;
              const auto other = weights[m][i].item<double>();
              const bool before = m * k + i < n * k + j;
              const bool first =
                  by == DropBy::kPosition ? before : other > weight || (other == weight && before);
              ahead += first ? 1 : 0;
            }
          }
          EXPECT_EQ(limited[n][j].item<std::int64_t>(), ahead < room ? expert : ~expert);
        }
      }
    }
  }
}

}  // namespace
}  // namespace quatrain::kernels
