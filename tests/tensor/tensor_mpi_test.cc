// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism under mpirun.
#include "tests/tensor/mpi_cases.h"

namespace quatrain {
namespace {

TEST(TensorMpi, HasTheBitsOfThreadRanksAndTheNumbersOfOne) {
  expect_thread_bits_and_one_rank(full_grid(), 16);
}

}  // namespace
}  // namespace quatrain
