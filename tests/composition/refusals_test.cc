// SPDX-License-Identifier: Apache-2.0
// The rules of the composition are those of check() and of the schedules: what a rule refuses is
// refused under the key it names, everything else is allowed.
#include <gtest/gtest.h>

#include <array>
#include <map>

#include "quatrain/schedule/schedule.h"
#include "tests/composition/factors.h"

namespace quatrain {
namespace {

// What the schedule's generator says, each once.
const Problems& refused_by_schedule(const Row& row) {
  static std::map<std::array<int, 4>, Problems> known;
  const std::array key = {row[kSchedule], degree(row, kPp), row[kChunks] + 1, microbatches(row)};
  const auto [at, fresh] = known.try_emplace(key);
  if (!fresh) return at->second;
  try {
    make_schedule(schedule_of(row).name,
                  {.num_ranks = key[1], .num_microbatches = key[3], .chunks = key[2]});
  } catch (const ConfigError& error) {
    at->second.push_back({"schedule", error.what(), ""});
  }
  return at->second;
}

Problems refused(const Row& row) {
  Problems problems = check(config_of(row));
  for (const Problem& problem : refused_by_schedule(row)) problems.push_back(problem);
  return problems;
}

bool names(const Problems& problems, const std::string& key) {
  return std::any_of(problems.begin(), problems.end(),
                     [&](const Problem& problem) { return problem.where == key; });
}

// Every value of the factors that some rule names; of the others the first.
template <typename Visit>
void for_each_ruled_row(const Visit& visit) {
  const RowSpace space = composition_space();
  std::vector<bool> ruled(space.sizes.size(), false);
  for (const RowRule& rule : space.rules) {
    for (const std::size_t factor : rule.factors) ruled[factor] = true;
  }
  Row row(space.sizes.size(), 0);
  for (;;) {
    visit(row);
    std::size_t f = 0;
    while (f < row.size() && (!ruled[f] || ++row[f] == space.sizes[f])) row[f++] = 0;
    if (f == row.size()) return;
  }
}

TEST(Composition, RefusesWhatTheTableSaysAndNothingElse) {
  const std::vector<Refusal> refusals = composition_refusals();
  std::vector<std::int64_t> hits(refusals.size(), 0);
  for_each_ruled_row([&](const Row& row) {
    const Problems problems = refused(row);
    bool expected = false;
    for (std::size_t i = 0; i < refusals.size(); ++i) {
      if (!refusals[i].rule.refuses(row)) continue;
      ++hits[i];
      if (refusals[i].key.empty()) continue;
      expected = true;
      ASSERT_TRUE(names(problems, refusals[i].key)) << describe(row) << ": " << refusals[i].why;
    }
    if (!expected) {
      ASSERT_TRUE(problems.empty()) << describe(row) << ": " << problems.front().what;
    }
  });
  for (std::size_t i = 0; i < refusals.size(); ++i) EXPECT_GT(hits[i], 0) << refusals[i].why;
}

// Rules name too few factors if a free one matters.
TEST(Composition, RowsOfTheArrayAreAllowed) {
  const CoveringArray array(composition_space(), composition_seed());
  for (const Row& row : array.rows()) {
    const Problems problems = refused(row);
    EXPECT_TRUE(problems.empty()) << describe(row) << ": " << problems.front().what;
  }
}

}  // namespace
}  // namespace quatrain
