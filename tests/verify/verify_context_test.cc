// SPDX-License-Identifier: Apache-2.0
// Shared sequences against one rank, and faults planted in their positions, masks and rings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quatrain/verify/inject.h"
#include "tests/context/styles.h"
#include "tests/verify/question.h"

namespace quatrain {
namespace {

using ::testing::HasSubstr;

Recipe context_recipe(const ModelSpec& spec) {
  return {.spec = spec,
          .optimizer = {.name = "sgd", .lr = 0.1, .weight_decay = 0.0, .max_norm = 0.0},
          .global_batch = 8,
          .steps = 1};
}

// Two micro-batches, so that there is a block before.
Geometry of(const Style& style) { return with_style({.accumulation = 2}, style); }
Geometry ring(int ranks) { return of({"ring", ranks}); }

// Every axis but those of experts.
Geometry all_axes(const Style& style) {
  return with_style({.shards = 2,
                     .zero_stage = 1,
                     .accumulation = 2,
                     .tensor = 2,
                     .sequence_parallel = true,
                     .pipeline = 2},
                    style);
}

struct Injected {
  VerifyReport report;
  bool met;
};
Injected run(const std::string& fault, const Recipe& recipe, const Geometry& geometry) {
  const Injection injection = parse_injection(fault, recipe.spec);
  VerifyReport report = report_of(recipe, geometry, injection);
  return {std::move(report), *injection.met};
}

void expect_context_found(const std::string& fault, const Geometry& geometry,
                          const std::string& hint, const ModelSpec& spec = tensor_llama()) {
  SCOPED_TRACE(fault + " on " + geometry.name());
  const Injected found = run(fault, context_recipe(spec), geometry);
  EXPECT_TRUE(found.met);
  ASSERT_FALSE(found.report.equal());
  const FirstDifference& first = *found.report.first;
  EXPECT_EQ(first.row.step, 1);
  EXPECT_EQ(name(first.row.kind), "gradient");
  EXPECT_GT(first.row.max_rel, 1e-4);
  EXPECT_EQ(first.axes, std::vector<AxisSet>{Axis::kCp}) << first.hint;
  EXPECT_THAT(first.hint, HasSubstr("it vanishes with cp = 1"));
  EXPECT_THAT(first.hint, HasSubstr(hint));
}

std::vector<Style> styles_that_fit(const ModelSpec& spec) {
  std::vector<Style> fit;
  for (const Style& style : context_styles()) {
    if (fits(spec, of(style))) fit.push_back(style);
  }
  return fit;
}

bool on_ring(const Style& style) { return style.name == "ring" || style.name == "hybrid"; }

const std::string kFirstBlock = "from the output of layers.0 on";

TEST(VerifyContext, GeometriesEqualOneRank) {
  std::vector<Geometry> geometries = {all_axes({"ring", 2}), all_axes({"all_gather", 2}),
                                      all_axes({"ulysses", 2})};
  for (const Style& style : styles_that_fit(tensor_llama())) geometries.push_back(of(style));
  for (const Geometry& geometry : geometries) {
    const VerifyReport report = verify(question(context_recipe(tensor_llama()), geometry));
    EXPECT_TRUE(report.equal()) << geometry.name() << ": " << report.first->hint;
    for (const VerifyRow& row : report.rows) EXPECT_LE(row.max_rel, 1e-12) << row.tensor;
  }
}

TEST(VerifyContext, PositionsOfARank) {
  for (const Style& style : styles_that_fit(tensor_llama())) {
    expect_context_found("local_positions", of(style), kFirstBlock);
  }
  expect_context_found("local_positions", ring(2), "from the output of the embedding on",
                       tensor_gpt2());
}

TEST(VerifyContext, MaskByLocalIndex) {
  for (const Style& style : styles_that_fit(tensor_llama())) {
    expect_context_found("local_mask", of(style), kFirstBlock);
  }
}

// The forward is right; the last layer's scores are the first wrong thing that the backward makes.
TEST(VerifyContext, LogSumExpOfOwnKeysAlone) {
  for (const Style& style : styles_that_fit(tensor_llama())) {
    if (!on_ring(style)) continue;
    expect_context_found("own_lse", of(style),
                         "the backward pass meets model.layers.1.self_attn.v_proj.weight first");
  }
}

TEST(VerifyContext, GradientsOfAnotherBlock) {
  for (const Style& style : styles_that_fit(tensor_llama())) {
    if (!on_ring(style)) continue;
    expect_context_found("stale_block", of(style),
                         "the backward pass meets model.layers.1.self_attn.v_proj.weight first");
  }
}

TEST(VerifyContext, TheAxisAmongAllOthers) {
  for (const char* fault : {"local_positions", "local_mask"}) {
    for (const char* style : {"ring", "all_gather", "ulysses"}) {
      expect_context_found(fault, all_axes({style, 2}), kFirstBlock);
    }
  }
  for (const char* fault : {"own_lse", "stale_block"}) {
    expect_context_found(fault, all_axes({"ring", 2}), "self_attn.v_proj.weight first");
  }
}

// Sums over cp are those of data ranks: they share one copy of the parameters.
TEST(VerifyContext, SumsAndShiftsOverContext) {
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  const Injected sum = run("drop_reduce=" + up, context_recipe(tensor_llama()), ring(2));
  ASSERT_FALSE(sum.report.equal());
  EXPECT_EQ(sum.report.first->axes, std::vector<AxisSet>{Axis::kCp});
  EXPECT_THAT(sum.report.first->hint, HasSubstr("a sum over cp is missing"));
  expect_context_found("shift_positions=cp", ring(2), kFirstBlock);
}

// What is not on the way of a style changes nothing.
TEST(VerifyContext, FaultsOfTheRingNeedOne) {
  for (const char* fault : {"own_lse", "stale_block"}) {
    for (const Style& style : std::vector<Style>{{"all_gather", 2}, {"ulysses", 2}}) {
      const Injected found = run(fault, context_recipe(tensor_llama()), of(style));
      EXPECT_FALSE(found.met) << fault << " " << style.name;
      EXPECT_TRUE(found.report.equal()) << fault << " " << style.name;
    }
  }
  for (const char* fault : {"local_positions", "local_mask"}) {
    EXPECT_FALSE(run(fault, context_recipe(tensor_llama()), {.shards = 2}).met) << fault;
  }
}

}  // namespace
}  // namespace quatrain
