// SPDX-License-Identifier: Apache-2.0
// See errors.h.
#include "bench/planner/errors.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "bench/planner/median.h"

namespace quatrain::bench {
namespace {

struct Ratio {
  double error;  // predicted / measured - 1
  const PublishedRun* run;
};

Errors summed(std::vector<Ratio> ratios) {
  Errors errors;
  errors.n = static_cast<int>(ratios.size());
  if (ratios.empty()) return errors;
  std::ranges::sort(ratios, {}, [](const Ratio& r) { return std::abs(r.error); });
  const auto at = [&](double share) {
    const auto index = static_cast<std::size_t>(share * static_cast<double>(ratios.size() - 1));
    return std::abs(ratios[index].error);
  };
  const auto n = static_cast<double>(ratios.size());
  for (const Ratio& ratio : ratios) {
    errors.mean += std::abs(ratio.error) / n;
    errors.bias += ratio.error / n;
  }
  errors.median = at(0.5);
  errors.p90 = at(0.9);
  errors.worst = at(1);
  errors.worst_label = ratios.back().run->label;
  return errors;
}

double speed(double seconds) { return 1 / seconds; }

// Measured over the best measured speed of what the planner takes for the fastest that fits.
struct Contest {
  std::vector<double> predicted, measured;  // rows that ran
  double chosen = 0, best = 0;
  double promised = 0;  // speed that the planner expects of its choice
};

void add(Contest& contest, const Judged& row) {
  const double measured = row.run->failed ? 0 : speed(row.run->seconds);
  const double promised = row.prediction.fits ? speed(row.prediction.seconds) : 0;
  if (promised > contest.promised) {
    contest.promised = promised;
    contest.chosen = measured;
  }
  contest.best = std::max(contest.best, measured);
  if (row.run->failed) return;
  contest.predicted.push_back(speed(row.prediction.seconds));
  contest.measured.push_back(measured);
}

}  // namespace

Errors time_errors(std::span<const Judged> judged) {
  std::vector<Ratio> ratios;
  for (const Judged& row : judged) {
    if (row.run->failed || !std::isfinite(row.run->seconds)) continue;
    ratios.push_back({row.prediction.seconds / row.run->seconds - 1, row.run});
  }
  return summed(std::move(ratios));
}

Errors memory_errors(std::span<const Judged> judged) {
  std::vector<Ratio> ratios;
  for (const Judged& row : judged) {
    if (row.run->failed || !std::isfinite(row.run->gib)) continue;
    ratios.push_back({row.prediction.gib / row.run->gib - 1, row.run});
  }
  return summed(std::move(ratios));
}

Feasibility feasibility(std::span<const Judged> judged) {
  Feasibility result;
  for (const Judged& row : judged) {
    ++result.n;
    if (row.prediction.fits != row.run->failed) ++result.right;
    if (row.prediction.fits && row.run->failed) ++result.false_fits;
  }
  return result;
}

Choices choices(std::span<const Judged> judged) {
  std::map<std::string, Contest> contests;
  for (const Judged& row : judged) {
    if (!row.run->contest.empty()) add(contests[row.run->contest], row);
  }
  Choices result;
  std::vector<double> losses, taus;
  for (const auto& [name, contest] : contests) {
    if (contest.measured.size() < 2) continue;
    ++result.contests;
    losses.push_back(1 - contest.chosen / contest.best);
    if (losses.back() <= 0.05) ++result.within_5_percent;
    taus.push_back(kendall_tau(contest.predicted, contest.measured));
  }
  result.median_loss = median(losses);
  result.median_tau = median(taus);
  return result;
}

double kendall_tau(std::span<const double> a, std::span<const double> b) {
  double agree = 0, pairs = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j, ++pairs) {
      const double product = (a[i] - a[j]) * (b[i] - b[j]);
      agree += product > 0 ? 1 : product < 0 ? -1 : 0;
    }
  }
  return pairs > 0 ? agree / pairs : 0;
}

}  // namespace quatrain::bench
