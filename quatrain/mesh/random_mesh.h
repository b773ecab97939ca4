// SPDX-License-Identifier: Apache-2.0
// Random meshes and axes for the property tests of this folder.
#pragma once
#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "quatrain/mesh/mesh.h"

namespace quatrain {

class RandomMeshes {
 public:
  explicit RandomMeshes(unsigned seed) : engine_(seed) {}

  int below(int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(engine_); }
  bool coin() { return below(2) == 1; }

  // Degrees of powers of two and threes, at most `most` ranks a stage.
  Mesh mesh(int most) {
    Mesh::Degrees degrees;
    degrees.fill(1);
    degrees[0] = 1 + below(3);
    std::vector<int> primes;
    for (int product = 1; below(8) != 0;) {
      const int prime = below(4) == 0 ? 3 : 2;
      if (product * prime > most) break;
      product *= prime;
      primes.push_back(prime);
    }
    for (int prime : primes) {
      degrees[static_cast<std::size_t>(1 + below(4))] *= prime;
      degrees[static_cast<std::size_t>(5 + below(4))] *= prime;
    }
    std::vector<Axis> order = {Axis::kPp, Axis::kDpReplicate, Axis::kDpShard, Axis::kCp, Axis::kTp};
    if (coin()) std::shuffle(order.begin(), order.end(), engine_);
    const Mesh first(degrees, order, 0);
    return first.with_rank(below(first.world_size()));
  }

  // A random set of axes of one view.
  AxisSet axes(bool expert) {
    AxisSet result;
    for (int a = expert ? 5 : 1; a < (expert ? 9 : 5); ++a) {
      if (coin()) result = result | static_cast<Axis>(a);
    }
    return coin() ? result : result | Axis::kPp;
  }

 private:
  std::mt19937 engine_;
};

}  // namespace quatrain
