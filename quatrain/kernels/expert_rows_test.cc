// SPDX-License-Identifier: Apache-2.0
// Sorting by expert, gathering, bringing back and grouped products against plain loops: with empty
// experts, with all rows on one, and with no rows at all.
#include "quatrain/kernels/expert_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <vector>

#include "quatrain/kernels/flops.h"
#include "quatrain/kernels/testing.h"

namespace quatrain::kernels {
namespace {

using testing::Bounds;
using testing::kDtypes;
using testing::random;
using testing::relative;

// Choices of 30 rows among 7 experts.
std::vector<at::Tensor> cases() {
  const auto ids = at::TensorOptions(at::kLong);
  return {at::randint(7, {30, 3}, ids), at::full({30, 1}, 6, ids),
          at::randint(3, {30, 2}, ids).add(2), at::empty({0, 2}, ids)};
}

TEST(ExpertRows, AreSortedByExpertThenByRow) {
  for (const at::Tensor& experts : cases()) {
    const ExpertRows rows = sort_by_expert(experts, 7);
    ASSERT_EQ(rows.count(), experts.numel());
    ASSERT_EQ(rows.begin.size(), 8U);
    std::int64_t before = -1;
    for (std::int64_t e = 0; e < 7; ++e) {
      for (std::int64_t m = rows.begin[static_cast<std::size_t>(e)];
           m < rows.begin[static_cast<std::size_t>(e) + 1]; ++m) {
        const std::int64_t choice = rows.choice_M[m].item<std::int64_t>();
        EXPECT_EQ(experts.view({-1})[choice].item<std::int64_t>(), e);
        EXPECT_EQ(rows.row_Nk.view({-1})[choice].item<std::int64_t>(), m);
        const bool first = m == rows.begin[static_cast<std::size_t>(e)];
        EXPECT_TRUE(first || before < choice);
        before = choice;
      }
    }
  }
}

TEST(ExpertRows, GatherAndSumAreALoopsAndEachOthersTranspose) {
  const Bounds bounds{1e-15, 1e-6, 8e-3};
  for (const at::ScalarType dtype : kDtypes) {
    for (const at::Tensor& experts : cases()) {
      const ExpertRows rows = sort_by_expert(experts, 7);
      const std::int64_t k = experts.size(1);
      const at::Tensor x = random({experts.size(0), 70}, dtype).narrow(1, 0, 33);
      const at::Tensor gathered = gather_by_expert(x, rows);
      const at::Tensor want = x.index_select(0, rows.choice_M.floor_divide(k));
      EXPECT_TRUE(gathered.equal(want));
      const at::Tensor y = random({rows.count(), 33}, dtype);
      at::Tensor sum = at::zeros({experts.size(0), 33}, at::kDouble);
      for (std::int64_t m = 0; m < rows.count(); ++m) {
        sum[rows.choice_M[m].item<std::int64_t>() / k] += y[m].to(at::kDouble);
      }
      const at::Tensor got = sum_by_row(y, rows);
      ASSERT_EQ(got.sizes(), sum.sizes());
      if (sum.numel() > 0) {
        EXPECT_LE(relative(got, sum), bounds.of(dtype));
      }
    }
  }
}

TEST(ExpertRows, RowsScaledAndMultiplied) {
  const Bounds bounds{1e-15, 1e-6, 8e-3};
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor a = random({40, 21}, dtype), b = random({40, 21}, dtype);
    const at::ScalarType wide_dtype = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor scales = random({40}, wide_dtype);
    const at::Tensor dots = row_dots(a, b);
    EXPECT_EQ(dots.scalar_type(), wide_dtype);
    EXPECT_LE(relative(dots, (a.to(at::kDouble) * b.to(at::kDouble)).sum(1)), 1e-6);
    at::Tensor scaled = a.clone();
    scale_rows_(scaled, scales);
    EXPECT_LE(relative(scaled, a.to(at::kDouble) * scales.to(at::kDouble).unsqueeze(1)),
              bounds.of(dtype));
  }
}

TEST(ExpertRows, GroupedProductsAreALoopOfProducts) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const at::Tensor& experts : cases()) {
      const ExpertRows rows = sort_by_expert(experts, 7);
      const at::Tensor x = random({rows.count(), 12}, dtype);
      for (const bool transposed : {false, true}) {
        std::vector<at::Tensor> matrices;
        for (int e = 0; e < 7; ++e) {
          matrices.push_back(
              random(transposed ? at::IntArrayRef{9, 12} : at::IntArrayRef{12, 9}, dtype));
        }
        at::Tensor out = testing::poisoned_like(random({rows.count(), 9}, dtype));
        FlopCounter counted;
        {
          const ScopedFlopCounter scope(&counted);
          grouped_matmul_out(out, x, matrices, transposed, rows.begin);
        }
        EXPECT_EQ(counted.total(), 2 * rows.count() * 12 * 9);
        for (std::int64_t m = 0; m < rows.count(); ++m) {
          const std::int64_t e =
              experts.view({-1})[rows.choice_M[m].item<std::int64_t>()].item<std::int64_t>();
          const at::Tensor& w = matrices[static_cast<std::size_t>(e)];
          const at::Tensor want =
              x.narrow(0, m, 1).to(at::kDouble).matmul((transposed ? w.t() : w).to(at::kDouble));
          EXPECT_LE(relative(out.narrow(0, m, 1), want), dtype == at::kBFloat16 ? 1e-2 : 1e-5);
        }
      }
    }
  }
}

// Small runs at the front, at the cuts and at the back; none left out, on one thread and on more.
TEST(ExpertRows, GroupedProductsCoverRunsOfAnyLength) {
  for (const std::vector<std::int64_t>& begin : std::vector<std::vector<std::int64_t>>{
           {0, 1, 3, 12, 12, 13}, {0, 0, 2, 4, 6, 8}, {0, 3, 17, 18, 40, 41}, {0, 9, 9, 9, 9, 9}}) {
    const at::Tensor x = random({begin.back(), 12}, at::kDouble);
    std::vector<at::Tensor> matrices;
    for (int e = 0; e < 5; ++e) matrices.push_back(random({20, 12}, at::kDouble));
    const auto product = [&] {
      at::Tensor out = testing::poisoned_like(random({begin.back(), 20}, at::kDouble));
      grouped_matmul_out(out, x, matrices, true, begin);
      return std::vector<at::Tensor>{out};
    };
    testing::with_threads(product, [&](const auto& one, const auto& other) {
      for (const auto& got : {one[0], other[0]}) {
        for (std::size_t e = 0; e < 5; ++e) {
          const std::int64_t count = begin[e + 1] - begin[e];
          if (count == 0) continue;
          const at::Tensor want = x.narrow(0, begin[e], count).matmul(matrices[e].t());
          EXPECT_LE(relative(got.narrow(0, begin[e], count), want), 1e-13);
        }
      }
    });
  }
}

TEST(ExpertRows, RefuseWhatDoesNotFit) {
  const at::Tensor experts = at::full({4, 1}, 3, at::TensorOptions(at::kLong));
  EXPECT_ANY_THROW(sort_by_expert(experts, 3));
  const ExpertRows rows = sort_by_expert(experts, 4);
  EXPECT_ANY_THROW(gather_by_expert(random({5, 2}, at::kFloat), rows));
  EXPECT_ANY_THROW(sum_by_row(random({5, 2}, at::kFloat), rows));
}

}  // namespace
}  // namespace quatrain::kernels
