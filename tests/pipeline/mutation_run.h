// SPDX-License-Identifier: Apache-2.0
// Broken schedules run by the executor with tiny stages: what check() accepts computes what one
// rank does; what it rejects stops, computes something else, or runs only because sends are
// buffered here.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "quatrain/base/error.h"
#include "quatrain/schedule/mutation_test_support.h"
#include "tests/pipeline/grid.h"

namespace quatrain {

enum class RunOutcome : std::uint8_t { kRight, kWrong, kStopped };

// As rows of a whole step.
inline Schedule stepped(const Schedule& schedule) {
  for (const auto& row : schedule.per_rank) {
    for (const Action& action : row) {
      if (action.kind == ActionKind::kOptimizerStep) return schedule;
    }
  }
  return with_tied_reduce(with_optimizer_step(schedule));
}

inline Side side_of_rows(const Schedule& schedule) {
  const auto ranks = static_cast<int>(schedule.per_rank.size());
  const Recipe recipe{.spec = with_layers(tiny_gpt2(), schedule.num_stages),
                      .global_batch = schedule.num_microbatches,
                      .seq = 5,
                      .steps = 1};
  Side side = side_of(recipe, {.accumulation = schedule.num_microbatches,
                               .schedule = "gpipe",
                               .pipeline = ranks});
  side.job.plan.stage_begin = first_layers(even_layers(recipe.spec.layers, schedule.num_stages));
  side.job.schedule = schedule;
  return side;
}

// What one rank computes, of as many blocks and micro-batches.
inline const RunResult& right_result(const Schedule& schedule) {
  static std::map<std::pair<int, int>, RunResult> known;
  const std::pair key(schedule.num_stages, schedule.num_microbatches);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  const Recipe recipe{.spec = with_layers(tiny_gpt2(), schedule.num_stages),
                      .global_batch = schedule.num_microbatches,
                      .seq = 5,
                      .steps = 1};
  return known.emplace(key, run_on_threads(recipe, {})).first->second;
}

inline RunOutcome run_rows(const Schedule& schedule, std::string& why) {
  try {
    const RunResult got = run_steps(side_of_rows(schedule), 1);
    const double error = difference(got, right_result(schedule)).max_rel;
    return error <= 1e-12 ? RunOutcome::kRight : RunOutcome::kWrong;
  } catch (const std::exception& error) {
    why = error.what();
    return RunOutcome::kStopped;
  }
}

struct RunCounts {
  int accepted = 0, stopped = 0, wrong = 0, right = 0;  // of the rejected: the last three
};

// `count` mutations of schedules with one replica.
inline RunCounts run_mutations(unsigned seed, int count) {
  Mutator mutator(seed);
  RunCounts counts;
  for (int done = 0; done < count;) {
    Mutation mutation = mutator.next();
    if (mutation.text.starts_with("dualpipe ")) continue;
    ++done;
    const Schedule rows = stepped(without_pairs(mutation.schedule));
    const bool accepted = check(rows).empty();
    std::string why;
    const RunOutcome outcome = run_rows(rows, why);
    if (accepted) {
      ++counts.accepted;
      EXPECT_EQ(static_cast<int>(outcome), static_cast<int>(RunOutcome::kRight))
          << mutation.text << ": " << why;
    } else {
      counts.stopped += outcome == RunOutcome::kStopped;
      counts.wrong += outcome == RunOutcome::kWrong;
      counts.right += outcome == RunOutcome::kRight;
    }
  }
  return counts;
}

}  // namespace quatrain
