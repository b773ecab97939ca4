// SPDX-License-Identifier: Apache-2.0
// The team behind parallel.h. Nested teams are refused: a worker's own calls run on it alone.
#include "quatrain/kernels/parallel.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>

namespace quatrain::kernels {

int num_threads() { return omp_in_parallel() != 0 ? 1 : std::max(1, at::get_num_threads()); }

void run_team(int pieces, void (*body)(const void*, int), const void* context) {
  const int threads = std::min(pieces, num_threads());
  if (threads <= 1) {
    for (int piece = 0; piece < pieces; ++piece) body(context, piece);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int piece = 0; piece < pieces; ++piece) body(context, piece);
}

}  // namespace quatrain::kernels
