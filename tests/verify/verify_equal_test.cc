// SPDX-License-Identifier: Apache-2.0
// Geometries that compute what one rank does, in every dtype.
#include <gtest/gtest.h>

#include "tests/tensor/grid.h"
#include "tests/verify/question.h"

namespace quatrain {
namespace {

std::string said(const VerifyReport& report) {
  if (report.equal()) return "equal";
  const VerifyRow& row = report.first->row;
  return fmt::format("step {}, {} of {}: {:.2e} where {:.2e} is allowed; {}", row.step,
                     name(row.kind), row.tensor, row.max_rel, row.tolerance, report.first->hint);
}

TEST(Verify, FortyGeometriesEqualOneRank) {
  for (const Case& c : sample(full_grid(), 40)) {
    Recipe recipe = c.recipe;
    recipe.steps = 2;
    const VerifyReport report = verify(question(recipe, c.geometry));
    EXPECT_TRUE(report.equal()) << c.name() << ": " << said(report);
    for (const VerifyRow& row : report.rows) EXPECT_LE(row.max_rel, 1e-12) << row.tensor;
  }
}

// Sums in another order round otherwise.
TEST(Verify, DtypesBelowFloat64AreBoundedByTheirOwnRounding) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBFloat16}) {
    for (const ModelSpec& spec : {tensor_gpt2(), tensor_qwen3()}) {
      Recipe recipe{.spec = spec, .dtype = dtype, .optimizer = {.name = "adamw"}, .steps = 3};
      const Geometry geometry{
          .shards = 2, .zero_stage = 3, .accumulation = 2, .tensor = 2, .sequence_parallel = true};
      Question q = question(recipe, geometry);
      recipe.dtype = Dtype::kFloat64;
      q.exact = side_of(recipe, opponent(geometry));
      const VerifyReport report = verify(q);
      EXPECT_TRUE(report.equal()) << spec.name << " " << name(dtype) << ": " << said(report);
    }
  }
}

}  // namespace
}  // namespace quatrain
