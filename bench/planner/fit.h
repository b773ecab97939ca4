// SPDX-License-Identifier: Apache-2.0
// The two constants of a software stack on one kind of hardware, and predictions of rows by
// constants that other rows gave.
#pragma once
#include <map>
#include <span>
#include <string>
#include <vector>

#include "bench/planner/runs.h"

namespace quatrain::bench {

struct Constants {
  double rate = 1;   // Job::efficiency: of all computation
  double stash = 1;  // ClusterSpec::stash_factor: of activations kept
};
// By "software on hardware".
using ConstantsTable = std::map<std::string, Constants>;
std::string stack_of(const PublishedRun& run);

struct Prediction {
  double seconds = 0;
  double gib = 0;
  bool fits = false;
  bool possible = false;  // some geometry that the planner takes
  StepParts parts = {};
};
// The fastest geometry that fits, else the fastest.
Prediction predict(const PublishedRun& run, const Constants& constants);

// Of each stack that has rows: the rate at which the median row is right, and the factor with the
// least median error of memory where that is measured.
ConstantsTable fitted(std::span<const PublishedRun* const> runs);

struct Judged {
  const PublishedRun* run = nullptr;
  Prediction prediction;
};
// Every run by constants fitted without its group: groups are dealt by `seed` into at most five
// folds; a fold's rows are predicted by what the others of its table gave. Runs whose geometry the
// planner refuses are left out.
std::vector<Judged> judged_unseen(std::span<const PublishedRun> runs, std::uint64_t seed);

}  // namespace quatrain::bench
