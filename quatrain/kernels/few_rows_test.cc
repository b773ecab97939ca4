// SPDX-License-Identifier: Apache-2.0
#include "quatrain/kernels/few_rows.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "quatrain/kernels/testing.h"

namespace quatrain::kernels {
namespace {

using testing::random;
using testing::relative;

// x [m, k] op(w) into the columns of something wider, whose others must stay.
at::Tensor product(const at::Tensor& x, const at::Tensor& w, bool transposed) {
  const std::int64_t n = w.size(transposed ? 0 : 1);
  const at::Tensor wide = at::full({x.size(0), n + 3}, 7.0, x.options());
  few_rows_product({x.size(0), n, x.size(1)}, {x.data_ptr<float>(), x.stride(0)},
                   {w.data_ptr<float>(), w.stride(0), transposed}, wide.data_ptr<float>(),
                   wide.stride(0));
  EXPECT_TRUE(wide.narrow(1, n, 3).eq(7.0).all().item<bool>());
  return wide.narrow(1, 0, n);
}

// Around the sizes of tiles, registers, strips and panels, with padded rows on every side.
TEST(FewRows, EqualTheProductAtEverySize) {
  std::mt19937 draw(17);
  const std::vector<std::int64_t> rows{1, 2, 7, 8, 9, 15, 16, 17, 33, 64, 65, kFewRows},
      columns{1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 95, 200},
      inners{1, 2, 15, 16, 17, 255, 256, 257, 600};
  const auto one_of = [&](const std::vector<std::int64_t>& all) {
    return all[draw() % all.size()];
  };
  for (int i = 0; i < 400; ++i) {
    const std::int64_t m = one_of(rows), n = one_of(columns), k = one_of(inners);
    SCOPED_TRACE(::testing::Message() << m << " x " << n << " x " << k);
    const at::Tensor x = random({m, k + 5}, at::kFloat).narrow(1, 0, k);
    const at::Tensor w = random({k, n + 2}, at::kFloat).narrow(1, 0, n);
    const at::Tensor w_t = random({n, k + 1}, at::kFloat).narrow(1, 0, k).copy_(w.t());
    const at::Tensor sums = product(x, w, false), dots = product(x, w_t, true);
    EXPECT_LE(relative(sums, x.to(at::kDouble).matmul(w.to(at::kDouble))), 2e-6);
    EXPECT_TRUE(sums.equal(dots));
    EXPECT_TRUE(sums.narrow(0, m - 1, 1).equal(product(x.narrow(0, m - 1, 1), w, false)));
  }
}

// Rows are packed in panels where the inner dimension is long.
TEST(FewRows, LongInnerDimensions) {
  const at::Tensor x = random({80, 5000}, at::kFloat), w = random({40, 5000}, at::kFloat);
  const at::Tensor dots = product(x, w, true);
  EXPECT_LE(relative(dots, x.to(at::kDouble).matmul(w.t().to(at::kDouble))), 1e-5);
  EXPECT_TRUE(dots.narrow(0, 79, 1).equal(product(x.narrow(0, 79, 1), w, true)));
}

TEST(FewRows, RefuseNoneAndMany) {
  const at::Tensor w = random({4, 4}, at::kFloat);
  for (const std::int64_t rows : {std::int64_t{0}, kFewRows + 1}) {
    EXPECT_ANY_THROW(product(random({rows, 4}, at::kFloat), w, true));
  }
  EXPECT_ANY_THROW(product(random({2, 0}, at::kFloat), random({4, 0}, at::kFloat), true));
}

}  // namespace
}  // namespace quatrain::kernels
