// SPDX-License-Identifier: Apache-2.0
// Cross-entropy over cut vocabularies against the whole one: loss, z-loss, gradients; logits of
// +-80, labels on both sides of every cut (case 016).
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <cmath>

#include "quatrain/base/error.h"
#include "quatrain/kernels/pointwise.h"

namespace quatrain::kernels {
namespace {

constexpr std::int64_t kVocab = 251;

// Each share's first and last word, then random ones; every fifth row is not trained.
at::Tensor boundary_labels(std::int64_t rows, int shares) {
  at::Tensor labels = at::randint(kVocab, {rows}, at::TensorOptions(at::kLong));
  auto label = labels.accessor<std::int64_t, 1>();
  for (std::int64_t s = 0; s < shares && 2 * s + 1 < rows; ++s) {
    label[2 * s] = s * kVocab / shares;
    label[2 * s + 1] = (s + 1) * kVocab / shares - 1;
  }
  for (std::int64_t r = 4; r < rows; r += 5) label[r] = -100;
  return labels;
}

struct Cut {
  CrossEntropySums sums;
  double max_logit = 0.0;
  at::Tensor gradient;
};

Cut by_shares(const at::Tensor& logits, const at::Tensor& labels, int shares,
              const ShareLoss& loss) {
  std::vector<at::Tensor> pieces, statistics;
  std::vector<VocabShare> places;
  Cut cut;
  for (int s = 0; s < shares; ++s) {
    const std::int64_t begin = s * kVocab / shares;
    places.push_back({begin, kVocab});
    pieces.push_back(logits.narrow(1, begin, (s + 1) * kVocab / shares - begin)
                         .clone(at::MemoryFormat::Contiguous));
    const ShareStatistics own = cross_entropy_statistics(pieces.back(), labels, places.back());
    statistics.push_back(own.of_rows_N3);
    cut.max_logit = std::max(cut.max_logit, own.max_logit);
  }
  const at::Tensor all = at::stack(statistics);
  for (std::size_t s = 0; s < pieces.size(); ++s) {
    const CrossEntropySums sums = cross_entropy_share_(pieces[s], labels, places[s], all, loss);
    if (s > 0) {
      EXPECT_EQ(sums.loss, cut.sums.loss) << "ranks disagree";
    }
    cut.sums = sums;
  }
  cut.gradient = at::cat(pieces, 1);
  return cut;
}

double relative(double got, double want) { return std::abs(got - want) / std::abs(want); }

TEST(CrossEntropyShare, case_016_EqualsTheWholeVocabulary) {
  for (const auto& [dtype, tolerance] : {std::pair{at::kDouble, 1e-12}, {at::kFloat, 1e-6}}) {
    for (const double spread : {1.0, 80.0}) {
      for (const int shares : {1, 2, 3, 4, 8}) {
        SCOPED_TRACE(::testing::Message() << shares << " shares, spread " << spread);
        const at::Tensor logits = at::randn({37, kVocab}).clamp(-1, 1).mul(spread).to(dtype);
        const at::Tensor labels = boundary_labels(37, shares);
        at::Tensor whole = logits.clone();
        const CrossEntropySums want = cross_entropy_(whole, labels, 0.37, 1e-3, true);
        const Cut got = by_shares(logits, labels, shares, {0.37, 1e-3, true});
        EXPECT_LT(relative(got.sums.loss, want.loss), tolerance);
        EXPECT_LT(relative(got.sums.z, want.z), tolerance);
        EXPECT_EQ(got.sums.tokens, want.tokens);
        EXPECT_EQ(got.max_logit, want.max_logit);
        const double error = got.gradient.sub(whole).abs().max().item().toDouble();
        EXPECT_LT(error / whole.abs().max().item().toDouble(), tolerance);
      }
    }
  }
}

TEST(CrossEntropyShare, WithoutGradientLogitsStay) {
  const at::Tensor logits = at::randn({5, kVocab});
  const at::Tensor labels = boundary_labels(5, 2);
  EXPECT_TRUE(by_shares(logits, labels, 2, {1.0, 0.0, false}).gradient.equal(logits));
}

TEST(CrossEntropyShare, case_122_LabelsOutsideTheVocabularyAreNamed) {
  const at::Tensor labels = at::randint(1, {3}, at::TensorOptions(at::kLong)).add_(kVocab);
  EXPECT_THROW(cross_entropy_statistics(at::randn({3, 100}), labels, {100, kVocab}), BugError);
}

}  // namespace
}  // namespace quatrain::kernels
