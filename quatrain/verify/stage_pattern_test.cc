// SPDX-License-Identifier: Apache-2.0
// What copies and stages tell, on made-up tensors.
#include "quatrain/verify/stage_pattern.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "quatrain/spec/test_models.h"
#include "quatrain/verify/pieces.h"

namespace quatrain {
namespace {

// Four tied blocks as stages of one, two and one of them, on two ranks.
RankJobOptions job_of(std::vector<int> rank_of_stage = {0, 1, 0}) {
  RankJobOptions job;
  ModelSpec m;
  m.vocab = 61;
  m.hidden = 32;
  m.layers = 4;
  m.heads = m.kv_heads = 4;
  m.head_dim = 8;
  m.ffn = 48;
  m.max_positions = 32;
  job.spec = as_gpt2(m);
  job.plan.stage_begin = first_layers({1, 2, 1});
  job.schedule.rank_of_stage = {std::move(rank_of_stage)};
  return job;
}

NamedTensors grads_of(const ModelSpec& spec) {
  NamedTensors grads;
  for (const ParameterInfo& info : parameters(spec)) {
    const bool none = info.name.ends_with("k_proj.bias");
    grads.emplace(info.name, at::full({4}, none ? 1e-18 : 0.5, at::kDouble));
  }
  return grads;
}

// Of blocks [begin, end), and what else one adds.
std::set<std::string> names_of(const ModelSpec& spec, std::int64_t begin, std::int64_t end,
                               const std::set<std::string>& more = {}) {
  std::set<std::string> names = more;
  for (const ParameterInfo& info : parameters(spec)) {
    const bool none = info.name.ends_with("k_proj.bias");
    if (info.layer >= begin && info.layer < end && !none) names.insert(info.name);
  }
  return names;
}

TEST(StagePattern, StagesAlone) {
  const RankJobOptions job = job_of();
  const StagePattern pattern(job);
  const NamedTensors grads = grads_of(job.spec);
  const std::string table = parameters(job.spec).front().name;
  const auto alone = [&](const std::set<std::string>& differ) {
    return pattern.alone(differ, grads);
  };
  const auto names = [&](std::int64_t begin, std::int64_t end,
                         const std::set<std::string>& more = {}) {
    return names_of(job.spec, begin, end, more);
  };
  EXPECT_EQ(alone(names(1, 3)), std::vector{1});
  EXPECT_EQ(alone(names(-1, 1)), std::vector{0});
  EXPECT_EQ(alone(names(3, 5, {table})), std::vector{2});  // the head reads the table
  EXPECT_EQ(alone(names(1, 5, {table})), (std::vector{1, 2}));
  EXPECT_EQ(alone(names(1, 3, {"transformer.h.1.attn.k_proj.bias"})), std::vector{1});
  // A part of a stage, a stage and a part, all of them, the table.
  EXPECT_TRUE(alone(names(1, 2)).empty());
  EXPECT_TRUE(alone(names(1, 4)).empty());
  EXPECT_TRUE(alone(names(-1, 5)).empty());
  EXPECT_TRUE(alone({table}).empty());
  EXPECT_TRUE(alone({}).empty());
}

TEST(StagePattern, NormOfOneRanksStages) {
  const RankJobOptions job = job_of();
  const NamedTensors grads = grads_of(job.spec);
  const auto norm_of = [&](std::set<std::string> names) {
    return std::sqrt(static_cast<double>(names.size()));  // each has 1
  };
  std::set<std::string> ends = names_of(job.spec, -1, 1);
  ends.merge(names_of(job.spec, 3, 5));
  const StagePattern v(job);
  EXPECT_EQ(v.own_norm(norm_of(ends), grads, 1e-12), (std::vector{0, 2}));
  EXPECT_TRUE(v.own_norm(norm_of(names_of(job.spec, -1, 5)), grads, 1e-12).empty());
  // The last stage's copy of the table counts nowhere.
  const StagePattern last_first(job_of({1, 1, 0}));
  EXPECT_EQ(last_first.own_norm(norm_of(names_of(job.spec, 3, 5)), grads, 1e-12), std::vector{2});
}

TEST(StagePattern, WhereStagesBegin) {
  const StagePattern pattern(job_of());
  EXPECT_EQ(pattern.begins_at(2), 1);
  EXPECT_EQ(pattern.begins_at(4), 2);
  for (const std::size_t layer : {0U, 1U, 3U, 5U}) EXPECT_FALSE(pattern.begins_at(layer));
}

TEST(Pieces, OfCopiesTheFurthestCounts) {
  const auto values = [](std::initializer_list<double> list) {
    return at::tensor(std::vector<double>(list));
  };
  const NamedTensors want = {{"x", values({1.0, 2.0, 3.0})}};
  const auto whole = [&](const at::Tensor& first, const at::Tensor& second) {
    const Box box{{0}, {3}};
    const ScatteredTensors tensors = {{"x", {{3}, {{0, box, first}, {1, box, second}}}}};
    return assemble(tensors, want).at("x");
  };
  const at::Tensor right = values({1.0, 2.0, 3.0});
  const at::Tensor stale = values({1.0, 2.5, 2.0});
  EXPECT_TRUE(whole(right, stale).equal(stale));
  EXPECT_TRUE(whole(stale, right).equal(stale));
  EXPECT_TRUE(whole(stale, values({1.1, 1.9, 2.5})).equal(values({1.1, 2.5, 2.0})));
  const at::Tensor broken = values({std::nan(""), 2.0, 3.0});
  EXPECT_TRUE(std::isnan(whole(right, broken)[0].item<double>()));
  EXPECT_TRUE(std::isnan(whole(broken, right)[0].item<double>()));
}

}  // namespace
}  // namespace quatrain
