// SPDX-License-Identifier: Apache-2.0
// Orders and crossings of the published charts.
#include "bench/planner/lecture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace quatrain::bench {
namespace {

double mean_error(const Curve& curve) {
  double sum = 0;
  int n = 0;
  for (std::size_t i = 0; i < curve.x.size(); ++i) {
    if (!std::isfinite(curve.published[i]) || !std::isfinite(curve.predicted[i])) continue;
    sum += std::abs(curve.predicted[i] / curve.published[i] - 1);
    ++n;
  }
  return n > 0 ? sum / n : 0;
}

double crossing(const Curve& a, const Curve& b) {
  for (std::size_t i = 1; i < a.x.size(); ++i) {
    const bool before = a.predicted[i - 1] < b.predicted[i - 1];
    if (before != (a.predicted[i] < b.predicted[i])) return a.x[i];
  }
  return 0;
}

TEST(LectureTest, MoreStagesCostMoreWhereTheBatchIsSmall) {
  const Figure figure = pipeline_against_batch();
  for (const Curve& curve : figure.curves) {
    EXPECT_TRUE(std::is_sorted(curve.predicted.rbegin(), curve.predicted.rend())) << curve.name;
    EXPECT_LT(mean_error(curve), 0.10) << curve.name;
  }
  const auto &few = figure.curves[0].predicted, &many = figure.curves[1].predicted;
  for (std::size_t i = 0; i < few.size(); ++i) EXPECT_LE(few[i], many[i]);
  EXPECT_LT(few.back() / few.front(), 0.65);    // 87 of 163
  EXPECT_GT(many.back() / many.front(), 0.85);  // 160 of 176
}

TEST(LectureTest, TensorRanksFillANodeAndStop) {
  for (const Curve& curve : tensor_against_pipeline().curves) {
    const auto best = std::ranges::max_element(curve.predicted) - curve.predicted.begin();
    EXPECT_EQ(curve.x[static_cast<std::size_t>(best)], 8) << curve.name;
  }
}

TEST(LectureTest, RecomputationIsSlowerUntilMemoryEnds) {
  const Figure figure = recompute_against_batch();
  const Curve &with = figure.curves[0], &without = figure.curves[1];
  EXPECT_GT(without.predicted[0], with.predicted[0]);
  EXPECT_FALSE(std::isfinite(without.predicted.back()));
  double best_without = 0;
  for (const double rate : without.predicted) {
    if (std::isfinite(rate)) best_without = std::max(best_without, rate);
  }
  EXPECT_GT(with.predicted.back(), 1.5 * best_without);  // 7.8 against 3.9
}

TEST(LectureTest, ThreeAxesHoldWhatZero3LosesAtAFixedBatch) {
  const Figure figure = zero3_against_3d();
  for (const std::size_t model : {0U, 1U}) {
    const Curve &three = figure.curves[model], &zero = figure.curves[model + 2];
    EXPECT_GT(three.predicted.back(), zero.predicted.back());
    EXPECT_GT(three.predicted.back() / three.predicted.front(), 0.85);
    EXPECT_LT(zero.predicted.back() / zero.predicted.front(), 0.65);
    EXPECT_LT(mean_error(three), 0.10) << three.name;
  }
}

TEST(LectureTest, TensorRanksBeyondANodeFallOff) {
  const std::vector<double> rate = tensor_degree().curves[0].predicted;
  EXPECT_TRUE(std::is_sorted(rate.rbegin(), rate.rend()));
  EXPECT_LT(rate[3] / rate[2], 0.8);  // from 8 to 16 ranks: published 0.57
  EXPECT_GT(rate[2] / rate[1], 0.8);
}

TEST(LectureTest, RooflinesMeetWhereTheScalingBookSays) {
  const Figure figure = roofline();
  const auto full = [](const Curve& curve) {
    const auto at = std::ranges::find_if(curve.predicted, [](double y) { return y >= 1; });
    return at == curve.predicted.end()
               ? 0.0
               : curve.x[static_cast<std::size_t>(at - curve.predicted.begin())];
  };
  EXPECT_NEAR(full(figure.curves[0]), 850, 50);
  EXPECT_NEAR(full(figure.curves[1]), 400, 25);
  EXPECT_EQ(full(figure.curves[2]), 0);  // never
  EXPECT_GT(crossing(figure.curves[0], figure.curves[2]), 400);
}

TEST(LectureTest, WholeExpertsBeatThoseThatAreCut) {
  for (const Curve& curve : experts_by_width().curves) {
    ASSERT_EQ(curve.x[1], 2);  // ep 4 x etp 2
    EXPECT_GT(curve.predicted[0], 1.1 * curve.predicted[1]) << curve.name;
  }
}

TEST(LectureTest, FiguresAreDrawn) {
  for (const Figure& figure : lecture_figures()) {
    const std::string text = svg(figure);
    EXPECT_NE(text.find("</svg>"), std::string::npos);
    EXPECT_EQ(text.find("nan"), std::string::npos) << figure.file;
  }
}

// A ring waits for its slowest link until attention hides it; exchanges send least, where heads
// suffice; inside nodes they are cheapest of all.
TEST(LectureTest, ARingPaysWhereSequencesAreLong) {
  for (const auto& [figure, crosses] : {std::pair{context_styles_in_a_node(), 32768.0},
                                        {context_styles_against_length(), 524288.0}}) {
    const Curve &ring = figure.curves[0], &gather = figure.curves[1], &heads = figure.curves[2];
    EXPECT_EQ(crossing(ring, gather), crosses) << figure.title;
    for (std::size_t i = 0; i < ring.x.size(); ++i) {
      EXPECT_EQ(ring.predicted[i] > gather.predicted[i], ring.x[i] >= crosses) << ring.x[i];
      EXPECT_GT(heads.predicted[i], std::max(ring.predicted[i], gather.predicted[i])) << ring.x[i];
    }
    EXPECT_NEAR(heads.predicted.back() / ring.predicted.back(), 1, 0.01) << figure.title;
  }
  const Figure nodes = context_styles_against_length();
  for (std::size_t i = 0; i < nodes.curves[0].x.size(); ++i) {
    EXPECT_GT(nodes.curves[3].predicted[i], nodes.curves[2].predicted[i]);
  }
  EXPECT_GT(nodes.curves[3].predicted[0], 2 * nodes.curves[0].predicted[0]);
}

}  // namespace
}  // namespace quatrain::bench
