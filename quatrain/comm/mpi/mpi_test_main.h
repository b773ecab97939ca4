// SPDX-License-Identifier: Apache-2.0
// What a test under mpirun sees of its job. See quatrain_mpi_test in cmake/Mpi.cmake.
#pragma once
#include <atomic>

#include "quatrain/comm/mpi/mpi.h"

namespace quatrain {

MpiWorld& test_world();
// What MpiOptions::interrupted returns; a test may set it.
std::atomic<bool>& test_interrupted();

}  // namespace quatrain
