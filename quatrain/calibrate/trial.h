// SPDX-License-Identifier: Apache-2.0
// One measurement of this machine: the products of a linear layer, attention, a copy, a training
// step of one rank, or a collective of thread ranks. All ranks work at once, as in training, since
// they share the memory's bandwidth.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/planner/collective.h"
#include "quatrain/planner/geometry.h"

namespace quatrain {

enum class TrialKind : std::uint8_t { kProduct, kAttention, kCopy, kStep, kCollective };

struct Trial {
  TrialKind kind = TrialKind::kProduct;
  Dtype dtype = Dtype::kFloat32;
  std::int64_t m = 0, n = 0, k = 0;  // of a layer's product [m, k] x [k, n] and its gradients'
  std::int64_t count = 1;            // of experts, each with such a layer
  std::int64_t tokens = 0;           // of attention: 8 heads of 64
  std::int64_t bytes = 0;            // of a copy, read and written; of a collective's whole tensor
  CommKind collective = CommKind::kAllReduce;
};
// "products 512x512x512 bfloat16", "all_reduce 1048576": unique among default_trials().
std::string name(const Trial& trial);
double flops(const Trial& trial);  // of one rank; 0 where it computes nothing, and of a step

struct Ranks {
  int count = 1;    // 2 or more where collectives are to be measured
  int threads = 1;  // compute threads of each
};
// Half a minute on two cores. Without collectives where there is one rank.
std::vector<Trial> default_trials(const Ranks& ranks);

struct Measurement {
  double seconds = 0;  // of one call: a rank's median; the mean over ranks, of collectives the most
  double waiting = 0;  // share of a call, in the mean, for which a rank waits for the slowest
  // Of a step: the share that the first rank saves while the others stand still, in the median of
  // calls in turn with those of all, since machines change from one minute to the next.
  double solo_gain = 0;
};
// Of calls that fill `budget` seconds, behind two that warm up. Starts threads; throws what the
// operation throws.
Measurement measure(const Trial& trial, const Ranks& ranks, double budget = 0.3);

struct TrialResult {
  Trial trial;
  std::optional<double> seconds = {};
  double waiting = 0, solo_gain = 0;  // Measurement's
  std::string failure = {};  // why there are none
};

}  // namespace quatrain
