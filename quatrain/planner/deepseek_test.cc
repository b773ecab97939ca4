// SPDX-License-Identifier: Apache-2.0
// "Insights into DeepSeek-V3" (arXiv:2505.09343), table 4: one step of 15,360 sequences of 4,096
// tokens on 2,048 H800, 16 pipeline ranks in dualpipe, over two networks.
#include <gtest/gtest.h>

#include "quatrain/cost/stage_cut.h"
#include "quatrain/cost/walk.h"
#include "quatrain/schedule/clock.h"
#include "quatrain/schedule/schedule.h"
#include "quatrain/spec/model_io.h"

namespace quatrain {
namespace {

constexpr double kSequences = 15360, kTokens = 4096, kGpus = 2048, kPeak = 989e12;
constexpr int kRanks = 16, kMicrobatches = 120;
constexpr double kWithin = 0.03;

struct Printed {
  const char* network;
  double tokens_a_day, step;                                    // 1e9; seconds, as the next six
  double forward, bubble, input, weight, pairs, optimizer;      // 1F, bubble, 1B, 1W, 1F1B, opt
  double teraflops_all, teraflops_causal, mfu_all, mfu_causal;  // all pairs of attention counted
};
const Printed kPrinted[] = {
    {"MPFT", 272.8, 19.926, 1.13, 2.06, 1.99, 0.48, 13.95, 0.29, 432, 385, 43.73, 38.94},
    {"MRFT", 272.52, 19.946, 1.13, 2.03, 1.99, 0.48, 14.0, 0.31, 432, 385, 43.68, 38.9}};

void expect_within(double value, double printed, const char* what) {
  EXPECT_NEAR(value, printed, kWithin * printed) << what;
}

std::vector<UnitCost> units_of(const ModelSpec& model) {
  WorkShape shape;
  shape.seq = static_cast<std::int64_t>(kTokens);
  return walk(model, shape);
}
double flops_of(const UnitCost& unit) {
  return (unit.forward() + unit.backward_input() + unit.backward_weight()).value;
}

// Of the step that was measured: what the walk says of its FLOPs.
TEST(DeepSeekPaper, RatesOfTable4) {
  double flops = 0, pairs = 0;
  for (const UnitCost& unit : units_of(catalog_model("deepseek-v3").spec)) {
    flops += flops_of(unit);
    for (const OpCost& op : unit.ops) {
      if (op.name == "attention") pairs += (op.forward + op.backward_input).value;
    }
  }
  for (const Printed& row : kPrinted) {
    SCOPED_TRACE(row.network);
    const double each = kSequences / (row.step * kGpus);
    EXPECT_NEAR(each * flops / 1e12, row.teraflops_causal, 0.005 * row.teraflops_causal);
    EXPECT_NEAR(each * (flops + pairs) / 1e12, row.teraflops_all, 0.005 * row.teraflops_all);
    EXPECT_NEAR(100 * each * flops / kPeak, row.mfu_causal, 0.005 * row.mfu_causal);
    EXPECT_NEAR(100 * each * (flops + pairs) / kPeak, row.mfu_all, 0.005 * row.mfu_all);
    EXPECT_NEAR(86400 / row.step * kSequences * kTokens / 1e9, row.tokens_a_day, 0.1);
  }
}

// Share of each stage, 1 in the mean, in the cut that balances the model. The run also trained a
// module that predicts a second token, behind the head: one more block, a product that joins two
// streams, and the head once more (arXiv:2412.19437, section 2.2).
std::vector<double> shares_of_stages() {
  const ModelSpec model = catalog_model("deepseek-v3").spec;
  std::vector<UnitCost> units = units_of(model);
  const double hidden = static_cast<double>(model.hidden);
  OpCost second;
  second.forward = Flops{flops_of(units[units.size() - 2]) + flops_of(units.back()) +
                         6 * kTokens * 2 * hidden * hidden};
  units.back().ops.push_back(second);
  const std::vector<std::int64_t> cut = balanced_layers(units, kRanks);
  std::vector<double> shares;
  double all = 0;
  for (std::size_t stage = 0, unit = 1; stage < cut.size(); ++stage) {
    double& share = shares.emplace_back(stage == 0 ? flops_of(units.front()) : 0.0);
    for (std::int64_t block = 0; block < cut[stage]; ++block) share += flops_of(units[unit++]);
    if (stage + 1 == cut.size()) share += flops_of(units.back());
    all += share;
  }
  for (double& share : shares) share *= kRanks / all;
  return shares;
}

// Seconds, or counts, of what the first rank does, by the table's names.
struct Parts {
  double forward = 0, input = 0, weight = 0, fused = 0, pairs = 0;
  void add(const Action& action, double amount) {
    double& part = action.overlap                               ? pairs
                   : action.kind == ActionKind::kForward        ? forward
                   : action.kind == ActionKind::kBackwardInput  ? input
                   : action.kind == ActionKind::kBackwardWeight ? weight
                                                                : fused;
    part += amount;
  }
};

// Four of the table's times, over how often dualpipe's first rank does each, give the durations of
// a mean stage; the clock then has to find the bubble and the step.
Durations durations_of(const Printed& row, const Schedule& schedule) {
  Parts n;
  for (const Action& action : schedule.per_rank.front()) n.add(action, 1);
  const double f = row.forward / n.forward, w = row.weight / n.weight;
  const double i = (row.input - n.fused * w) / (n.input + n.fused);
  // Messages of 16 bit at what one network card of 400 Gbit/s carries.
  const double message = 2 * kTokens * 7168 / 50e9;
  Durations durations;
  durations.wires = Wires::kLanes;
  durations.pair_factor = row.pairs / n.pairs / (f + i + w);
  for (const double share : shares_of_stages()) {
    durations.of_stage.push_back(to_stage({f, i, w, message}, share));
  }
  return durations;
}

TEST(DeepSeekPaper, StepOfTable4) {
  const Schedule schedule = dualpipe(kRanks, kMicrobatches);
  for (const Printed& row : kPrinted) {
    SCOPED_TRACE(row.network);
    const Timeline timeline = simulate(schedule, durations_of(row, schedule));
    Parts mean;  // over ranks: those with the fewest pairs have the most of all else
    for (const auto& events : timeline.per_rank) {
      for (const ClockEvent& e : events) mean.add(e.action, (e.end - e.begin) / kRanks);
    }
    const double work = mean.forward + mean.input + mean.weight + mean.fused + mean.pairs;
    expect_within(work, row.forward + row.input + row.weight + row.pairs, "work");
    expect_within(timeline.span + row.optimizer, row.step, "step");
    // A quarter of a second of twenty: where the run had its module is not printed.
    EXPECT_NEAR(timeline.bubble, row.bubble, 0.015 * row.step);
  }
}

}  // namespace
}  // namespace quatrain
