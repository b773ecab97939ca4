// SPDX-License-Identifier: Apache-2.0
// Candidates are kept in the order in which the draw walks over them: by index when all take part,
// else likeliest first.
#include "quatrain/infer/sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "quatrain/base/error.h"

namespace quatrain {
namespace {

struct Candidate {
  std::int64_t id;
  double weight;  // not normalised
};

bool likelier(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
}

std::int64_t likeliest(std::span<const double> logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

void check_finite(std::span<const double> logits) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] < std::numeric_limits<double>::infinity()) continue;
    throw DataError(
        fmt::format("logit {} is {}: the weights are damaged, or too large for the compute dtype",
                    i, logits[i]));
  }
}

double sum_of(std::span<const Candidate> candidates) {
  return std::accumulate(candidates.begin(), candidates.end(), 0.0,
                         [](double sum, const Candidate& c) { return sum + c.weight; });
}

void keep_top_k(std::vector<Candidate>& candidates, std::int64_t top_k) {
  const auto kept = candidates.begin() + static_cast<std::ptrdiff_t>(top_k);
  std::partial_sort(candidates.begin(), kept, candidates.end(), likelier);
  candidates.erase(kept, candidates.end());
}

// `candidates` are sorted.
void keep_top_p(std::vector<Candidate>& candidates, double top_p) {
  const double enough = top_p * sum_of(candidates);
  double held = 0.0;
  std::size_t count = 0;
  while (count < candidates.size() && held < enough) held += candidates[count++].weight;
  candidates.resize(std::max<std::size_t>(count, 1));
}

}  // namespace

void check(const SamplingOptions& options) {
  Problems problems;
  if (!(options.temperature >= 0.0) || std::isinf(options.temperature)) {
    problems.push_back({"temperature", fmt::format("{} is not a temperature", options.temperature),
                        "0 (greedy) or above; usual are 0.7 to 1"});
  }
  if (options.top_k < 0) {
    problems.push_back({"top-k", fmt::format("{} tokens cannot be kept", options.top_k),
                        "0 (all) or above; usual are 40 to 200"});
  }
  if (!(options.top_p > 0.0 && options.top_p <= 1.0)) {
    problems.push_back({"top-p", fmt::format("{} is not a probability to keep", options.top_p),
                        "above 0, up to 1 (all); usual are 0.9 to 1"});
  }
  throw_if_any(problems);
}

std::int64_t sample(std::span<const double> logits, const SamplingOptions& options,
                    double uniform) {
  check_finite(logits);
  const std::int64_t best = likeliest(logits);
  if (options.temperature == 0.0) return best;
  const double highest = logits[static_cast<std::size_t>(best)];
  std::vector<Candidate> candidates(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    candidates[i] = {static_cast<std::int64_t>(i),
                     std::exp((logits[i] - highest) / options.temperature)};
  }
  const auto vocab = static_cast<std::int64_t>(logits.size());
  if (options.top_k > 0 && options.top_k < vocab) {
    keep_top_k(candidates, options.top_k);
  } else if (options.top_p < 1.0) {
    std::sort(candidates.begin(), candidates.end(), likelier);
  }
  if (options.top_p < 1.0) keep_top_p(candidates, options.top_p);

  const double target = uniform * sum_of(candidates);
  double passed = 0.0;
  for (const Candidate& candidate : candidates) {
    passed += candidate.weight;
    if (target < passed) return candidate.id;
  }
  return best;  // rounding: the draw lies at the very end
}

}  // namespace quatrain
