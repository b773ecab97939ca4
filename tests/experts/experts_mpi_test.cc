// SPDX-License-Identifier: Apache-2.0
// Experts shared under mpirun.
#include "tests/experts/parallel_grid.h"
#include "tests/tensor/mpi_cases.h"

namespace quatrain {
namespace {

TEST(ExpertsMpi, HaveTheBitsOfThreadRanksAndTheNumbersOfOne) {
  expect_thread_bits_and_one_rank(expert_parallel_grid(3), 12);
}

}  // namespace
}  // namespace quatrain
