// SPDX-License-Identifier: Apache-2.0
// Data parallelism under mpirun: the bits of the same geometry on thread ranks, which rank 0 runs
// first, in its own process, and one rank's numbers.
#include <gtest/gtest.h>

#include "quatrain/comm/mpi/mpi_test_main.h"
#include "quatrain/engine/rank_thread.h"
#include "tests/zero/geometry_run.h"
#include "tests/zero/optimizers.h"

namespace quatrain {
namespace {

class ZeroMpi : public ::testing::Test {
 protected:
  int ranks() const { return world_->size(); }

  void expect_bits_of_threads(const Recipe& recipe, const Geometry& geometry) {
    const RunResult got = run_geometry(recipe, geometry, *world_);
    if (world_->rank() != 0) return;
    EXPECT_TRUE(same_bits(got, run_on_threads(recipe, geometry)))
        << recipe.spec.name << ", " << name(recipe.dtype) << ", " << geometry.name();
    if (recipe.dtype != Dtype::kFloat64) return;
    const Difference worst = difference(got, run_on_threads(recipe, {}));
    EXPECT_LE(worst.max_rel, 1e-12) << geometry.name() << ": " << worst.where;
  }

  RankThread prologue_{{.threads = 1}};
  std::unique_ptr<Communicator> world_ = test_world().communicator();
};

std::vector<Geometry> geometries(int ranks) {
  std::vector<Geometry> all;
  for (const int zero : {0, 1, 2, 3}) {
    for (const int accumulation : {1, 4}) all.push_back({1, ranks, zero, accumulation});
    all.push_back({2, ranks / 2, zero, 1});
  }
  all.push_back({1, ranks, 3, 4, 2, true});
  return all;
}

TEST_F(ZeroMpi, HasTheBitsOfThreadRanks) {
  for (const ModelSpec& spec : {tiny_gpt2(), tiny_qwen3()}) {
    const Recipe recipe{.spec = spec, .optimizer = kAdamW, .steps = 2};
    for (const Geometry& geometry : geometries(ranks())) expect_bits_of_threads(recipe, geometry);
  }
}

TEST_F(ZeroMpi, HasTheBitsOfThreadRanksInEveryDtype) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBFloat16}) {
    const Recipe recipe{.dtype = dtype, .optimizer = kSgd, .steps = 2};
    for (const int zero : {0, 3}) expect_bits_of_threads(recipe, {1, ranks(), zero, 2});
  }
}

// The comparison can fail: threads that see the global batch in another order sum otherwise.
TEST_F(ZeroMpi, OtherGeometriesHaveOtherBits) {
  const Recipe recipe{.optimizer = kSgd, .steps = 1};
  const RunResult got = run_geometry(recipe, {1, ranks(), 3, 1}, *world_);
  if (world_->rank() != 0) return;
  EXPECT_FALSE(same_bits(got, run_on_threads(recipe, {})));
}

}  // namespace
}  // namespace quatrain
