// SPDX-License-Identifier: Apache-2.0
// See fit.h.
#include "bench/planner/fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "bench/planner/median.h"
#include "quatrain/base/error.h"

namespace quatrain::bench {
namespace {

constexpr std::size_t kMostFitted = 150;  // rows a fit looks at: more change it by less than 1 %
constexpr int kRounds = 4;
constexpr std::size_t kFew = 40;    // rows without a densest quarter worth the name
constexpr double kMostStash = 2.5;  // nobody keeps more than all that Quatrain makes
constexpr double kGib = 1024.0 * 1024 * 1024;

Job job_of(const PublishedRun& run, const Constants& constants) {
  Job job = run.job;
  const Software& of = software(run.software);
  job.efficiency = constants.rate;
  job.cluster.stash_factor = constants.stash;
  put_on(job.cluster, of);
  if (std::isfinite(run.tensor_overlap)) job.cluster.tensor_overlap = run.tensor_overlap;
  return job;
}

using Runs = std::vector<const PublishedRun*>;

// Evenly spread over the rows.
Runs thinned(const Runs& runs) {
  Runs result;
  const std::size_t stride = runs.size() / kMostFitted + 1;
  for (std::size_t i = 0; i < runs.size(); i += stride) result.push_back(runs[i]);
  return result;
}

// The middle of the densest quarter: runs that a failing network slows, half of one table, do not
// move it (as Rousseeuw's least median of squares, doi:10.1080/01621459.1984.10477105). Of a few
// the median, since the closest pair of those is chance.
double centre(std::vector<double> ratios) {
  if (ratios.size() < kFew) return median(std::move(ratios));
  std::ranges::sort(ratios);
  const std::size_t quarter = ratios.size() / 4;
  double best = ratios[ratios.size() / 2], narrowest = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i + quarter < ratios.size() && quarter > 1; ++i) {
    const double width = ratios[i + quarter] / ratios[i];
    if (width < narrowest) {
      narrowest = width;
      best = std::sqrt(ratios[i] * ratios[i + quarter]);
    }
  }
  return best;
}

double fitted_rate(const Runs& runs) {
  Constants constants;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> ratios;
    for (const PublishedRun* run : runs) {
      const Prediction p = predict(*run, constants);
      if (p.possible && std::isfinite(run->seconds)) ratios.push_back(p.seconds / run->seconds);
    }
    if (ratios.empty()) return 1;
    constants.rate = std::clamp(constants.rate * centre(std::move(ratios)), 0.1, 2.0);
  }
  return constants.rate;
}

double memory_error(const Runs& runs, double stash) {
  std::vector<double> errors;
  for (const PublishedRun* run : runs) {
    const Prediction p = predict(*run, {.stash = stash});
    if (p.possible) errors.push_back(std::abs(p.gib / run->gib - 1));
  }
  return median(std::move(errors));
}

double fitted_stash(const Runs& runs) {
  Runs measured;
  for (const PublishedRun* run : runs) {
    if (std::isfinite(run->gib)) measured.push_back(run);
  }
  if (measured.empty()) return 1;
  double best = 1, least = memory_error(measured, 1);
  for (double stash = 0.5; stash < kMostStash; stash *= 1.05) {
    const double error = memory_error(measured, stash);
    if (error < least) {
      least = error;
      best = stash;
    }
  }
  return best;
}

// [group] its fold, of at most five.
std::map<std::string, std::size_t> folds_of(const std::vector<const PublishedRun*>& runs,
                                            std::uint64_t seed) {
  std::set<std::string> names;
  for (const PublishedRun* run : runs) names.insert(run->group);
  std::vector<std::string> groups(names.begin(), names.end());
  std::mt19937_64 generator(seed);
  for (std::size_t i = groups.size(); i > 1; --i) std::swap(groups[i - 1], groups[generator() % i]);
  std::map<std::string, std::size_t> folds;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    folds[groups[i]] = i % std::min<std::size_t>(groups.size(), 5);
  }
  return folds;
}

// Of a stack that no other fold has: the same software on other hardware, else nothing fitted.
Constants constants_for(const PublishedRun& run, const ConstantsTable& table) {
  const auto exact = table.find(stack_of(run));
  if (exact != table.end()) return exact->second;
  for (const auto& [stack, constants] : table) {
    if (stack.starts_with(run.software + " on ")) return constants;
  }
  return {};
}

}  // namespace

std::string stack_of(const PublishedRun& run) {
  return run.software + " on " + run.job.cluster.name;
}

Prediction predict(const PublishedRun& run, const Constants& constants) {
  const Job job = job_of(run, constants);
  Estimator estimator(job);
  Prediction best;
  for (const Geometry& geometry : run.geometries) {
    try {
      const Estimate e =
          geometry.pp > 1 ? estimator.clocked(geometry).estimate : estimator.estimate(geometry);
      const bool better = !best.possible || (e.fits && !best.fits) ||
                          (e.fits == best.fits && e.step < best.seconds);
      // What the allocator of the software counts, without context and libraries.
      const double counted = e.memory.sum() - job.cluster.overhead_bytes;
      if (better) best = {e.step, counted / kGib, e.fits, true, e.parts};
    } catch (const ConfigError&) {
      continue;  // degrees that our runtime does not divide so
    }
  }
  return best;
}

ConstantsTable fitted(std::span<const PublishedRun* const> runs) {
  std::map<std::string, Runs> by_stack;
  for (const PublishedRun* run : runs) {
    if (!run->failed) by_stack[stack_of(*run)].push_back(run);
  }
  ConstantsTable table;
  for (const auto& [stack, rows] : by_stack) {
    const Runs some = thinned(rows);
    table[stack] = {fitted_rate(some), fitted_stash(some)};
  }
  return table;
}

std::vector<Judged> judged_unseen(std::span<const PublishedRun> runs, std::uint64_t seed) {
  std::map<std::string, Runs> by_table;
  for (const PublishedRun& run : runs) by_table[run.table].push_back(&run);
  std::vector<Judged> judged;
  for (const auto& [table, rows] : by_table) {
    const std::map<std::string, std::size_t> folds = folds_of(rows, seed);
    for (std::size_t fold = 0; fold < 5; ++fold) {
      Runs others, own;
      for (const PublishedRun* run : rows) {
        (folds.at(run->group) == fold ? own : others).push_back(run);
      }
      if (own.empty()) continue;
      const ConstantsTable constants = fitted(others);
      for (const PublishedRun* run : own) {
        const Prediction prediction = predict(*run, constants_for(*run, constants));
        if (prediction.possible) judged.push_back({run, prediction});
      }
    }
  }
  return judged;
}

}  // namespace quatrain::bench
