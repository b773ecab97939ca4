// SPDX-License-Identifier: Apache-2.0
// This rank's compute threads, as an OpenMP team. How many there are is at::get_num_threads() of
// the calling thread (thread-local: ranks may be threads). Inside a team everything is serial.
#pragma once
#include <cstdint>

namespace quatrain::kernels {

// Threads a call from here may use: 1 inside a team.
int num_threads();

// Calls body(context, piece) once for every piece in [0, pieces), spread over the team; returns
// when all are done. `body` must not throw. Piece p runs on thread p modulo the team's size.
void run_team(int pieces, void (*body)(const void*, int), const void* context);

template <class Body>  // void(int piece)
void parallel_pieces(int pieces, const Body& body) {
  if (pieces <= 1) {
    if (pieces == 1) body(0);
    return;
  }
  run_team(
      pieces, [](const void* b, int piece) { (*static_cast<const Body*>(b))(piece); }, &body);
}

// Calls body(begin, end) on contiguous ranges that cover [0, n), at most one a thread and none
// smaller than `grain` (but the only one): element bits must not depend on where the cuts fall.
template <class Body>  // void(std::int64_t begin, std::int64_t end)
void parallel_ranges(std::int64_t n, std::int64_t grain, const Body& body) {
  const std::int64_t threads = num_threads();
  const std::int64_t most = grain < 1 ? n : n / grain;
  const std::int64_t pieces = most < 1 ? 1 : (most < threads ? most : threads);
  parallel_pieces(static_cast<int>(pieces),
                  [&](int piece) { body(n * piece / pieces, n * (piece + 1) / pieces); });
}

}  // namespace quatrain::kernels
