// SPDX-License-Identifier: Apache-2.0
// AdamW and SGD against torch.optim in float64 (torch_reference.py, run once for all cases), and
// what users of other systems lost: decay groups, the step counter, small updates in bf16.
#include "quatrain/optim/optimizer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/base/rng.h"
#include "quatrain/comm/self/self.h"
#include "quatrain/optim/lr_schedule.h"

namespace quatrain {
namespace {

constexpr std::int64_t kSteps = 20;

ParameterInfo info(std::string name, std::vector<std::int64_t> shape, bool trainable = true) {
  ParameterInfo p;
  p.name = std::move(name);
  p.decay = shape.size() >= 2;
  p.shape = std::move(shape);
  p.trainable = trainable;
  return p;
}

double norm_of(const std::vector<ParamUnit*>& units) {
  std::vector<UnitShard> shards;
  for (ParamUnit* unit : units) shards.push_back(whole(*unit));
  return global_grad_norm(shards, *make_self_communicator());
}

// Two units, with decayed and undecayed neighbours and frozen parameters between.
struct Units {
  explicit Units(at::ScalarType dtype = at::kDouble)
      : first("first",
              {info("a.gain", {7}), info("a.weight", {5, 7}), info("b.frozen", {4, 4}, false),
               info("b.weight", {3, 5}), info("c.weight", {17, 2}), info("c.bias", {3})},
              dtype, at::kCPU),
        second("second", {info("d.frozen", {2, 2}, false), info("A.weight", {40, 3})}, dtype,
               at::kCPU),
        all{&first, &second} {
    for (ParamUnit* unit : all) {
      unit->allocate(true);
      unit->flat_value().fill_(0.25);
    }
  }
  std::vector<Param*> trained() {
    std::vector<Param*> result;
    for (ParamUnit* unit : all) {
      for (Param& p : unit->params()) {
        if (p.info.trainable) result.push_back(&p);
      }
    }
    return result;
  }
  ParamUnit first, second;
  std::vector<ParamUnit*> all;
};

// Row `step` holds a number for each trained element: the initial values (0), then gradients, of
// which some steps are clipped and some are not.
std::vector<double> numbers(std::int64_t numel) {
  const RandomStream stream(7, "optimizer_test");
  std::vector<double> result;
  for (std::int64_t step = 0; step <= kSteps; ++step) {
    const double scale = step == 0 || step % 3 == 0 ? 1.0 : 0.02;
    for (std::int64_t i = 0; i < numel; ++i) {
      result.push_back(scale * stream.normal(static_cast<std::uint64_t>(step * numel + i)));
    }
  }
  return result;
}

void copy_in(at::Tensor to, const double*& from) {
  const std::vector<double> values(from, from + to.numel());
  to.copy_(at::tensor(values, at::kDouble).view(to.sizes()));
  from += to.numel();
}

std::vector<double> to_vector(const at::Tensor& x) {
  const at::Tensor flat = x.to(at::kDouble).contiguous().view({-1});
  const auto values = flat.accessor<double, 1>();
  std::vector<double> result;
  for (std::int64_t i = 0; i < values.size(0); ++i) result.push_back(values[i]);
  return result;
}

struct Case {
  std::string name;
  OptimizerOptions options;
};
std::vector<Case> cases() {
  OptimizerOptions adamw{.name = "adamw", .lr = 0.03, .weight_decay = 0.1, .max_norm = 1.0};
  OptimizerOptions sgd{.name = "sgd", .lr = 0.03, .weight_decay = 0.1, .max_norm = 1.0};
  OptimizerOptions momentum = sgd;
  momentum.momentum = 0.9;
  OptimizerOptions nesterov = momentum;
  nesterov.nesterov = true;
  return {{"adamw", adamw}, {"sgd", sgd}, {"momentum", momentum}, {"nesterov", nesterov}};
}

std::string case_lines(Units& units) {
  std::string sizes, decays, lines;
  for (Param* p : units.trained()) {
    sizes += fmt::format("{} ", p->value.numel());
    decays += p->info.decay ? "1 " : "0 ";
  }
  for (const Case& c : cases()) {
    const OptimizerOptions& o = c.options;
    lines += fmt::format(
        "{} kind={} lr={} beta1={} beta2={} eps={} weight_decay={} momentum={} nesterov={} "
        "max_norm={}\n",
        c.name, o.name, o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.momentum,
        o.nesterov ? 1 : 0, o.max_norm);
  }
  return sizes + "\n" + decays + "\n" + lines;
}

class AgainstTorch : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::filesystem::temp_directory_path() / fmt::format("optimizer_test.{}", getpid());
    std::filesystem::create_directories(folder_);
    Units units;
    std::int64_t numel = 0;
    for (Param* p : units.trained()) numel += p->value.numel();
    numbers_ = numbers(numel);
    write_file_atomically(folder_ / "case.txt", case_lines(units));
    const auto* bytes = reinterpret_cast<const char*>(numbers_.data());
    write_file_atomically(folder_ / "input.f64", {bytes, numbers_.size() * sizeof(double)});
    const std::string command = fmt::format("{} {}/quatrain/optim/torch_reference.py {}",
                                            QUATRAIN_PYTHON, QUATRAIN_SOURCE_DIR, folder_.string());
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(folder_); }

  static std::vector<double> expected(const std::string& name) {
    const std::string bytes = read_file(folder_ / (name + ".f64"));
    std::vector<double> result(bytes.size() / sizeof(double));
    std::memcpy(result.data(), bytes.data(), bytes.size());
    return result;
  }

  // Norms of all steps, then final values.
  static std::vector<double> ours(const OptimizerOptions& options) {
    Units units;
    const double* next = numbers_.data();
    for (Param* p : units.trained()) copy_in(p->value, next);
    const auto optimizer = make_optimizer(options, units.all);
    optimizer->allocate();
    LrSchedule schedule{LrScheduleKind::kCosine, 5, 0, kSteps, 0.1};
    std::vector<double> result;
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      for (Param* p : units.trained()) copy_in(p->grad, next);
      const double norm = norm_of(units.all);
      result.push_back(norm);
      optimizer->step(options.lr * lr_factor(schedule, static_cast<double>(step)),
                      clip_scale(norm, options.max_norm));
    }
    for (Param* p : units.trained()) {
      for (double x : to_vector(p->value)) result.push_back(x);
    }
    EXPECT_TRUE(
        at::equal(units.first.param("b.frozen").value, at::full({4, 4}, 0.25, at::kDouble)));
    return result;
  }

  static std::filesystem::path folder_;
  static std::vector<double> numbers_;
};
std::filesystem::path AgainstTorch::folder_;
std::vector<double> AgainstTorch::numbers_;

TEST_F(AgainstTorch, TwentyStepsAgreeTo1e12) {
  for (const Case& c : cases()) {
    const std::vector<double> want = expected(c.name);
    const std::vector<double> got = ours(c.options);
    ASSERT_EQ(got.size(), want.size());
    double difference = 0.0;
    double largest = 0.0;
    int clipped = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      difference = std::max(difference, std::abs(got[i] - want[i]));
      largest = std::max(largest, std::abs(want[i]));
      if (i < kSteps && want[i] > 1.0) ++clipped;
    }
    EXPECT_LE(difference / largest, 1e-12) << c.name;
    EXPECT_GT(clipped, 3);
    EXPECT_LT(clipped, kSteps);
  }
}

TEST(Optimizer, case_134_DecayTouchesMatricesOnly) {
  for (const char* name : {"adamw", "sgd"}) {
    Units units;
    for (ParamUnit* unit : units.all) unit->flat_value().fill_(1.0);
    const auto optimizer = make_optimizer({.name = name, .weight_decay = 0.1}, units.all);
    optimizer->allocate();
    optimizer->step(0.1, 1.0);
    for (Param* p : units.trained()) {
      const double want = p->info.decay ? 0.99 : 1.0;
      for (double x : to_vector(p->value)) EXPECT_DOUBLE_EQ(x, want) << p->info.name;
    }
    for (double x : to_vector(units.first.param("b.frozen").value)) EXPECT_EQ(x, 1.0);
  }
}

TEST(Optimizer, case_037_FirstUpdateIsTheLearningRateAndResumingKeepsTheCount) {
  const OptimizerOptions options{.name = "adamw", .eps = 0.0, .weight_decay = 0.0};
  const auto fill = [](Units& units, double g) {
    for (ParamUnit* unit : units.all) unit->flat_grad().fill_(g);
  };
  Units whole;
  const auto optimizer = make_optimizer(options, whole.all);
  optimizer->allocate();
  fill(whole, 0.37);
  optimizer->step(0.01, 1.0);
  for (double x : to_vector(whole.first.param("a.weight").value)) EXPECT_NEAR(x, 0.24, 1e-15);

  Units resumed;
  const auto other = make_optimizer(options, resumed.all);
  other->allocate();
  for (std::size_t u = 0; u < whole.all.size(); ++u) {
    resumed.all[u]->flat_value().copy_(whole.all[u]->flat_value());
    for (std::size_t i = 0; i < whole.all[u]->params().size(); ++i) {
      const auto from = optimizer->state(whole.all[u]->params()[i]);
      auto to = other->state(resumed.all[u]->params()[i]);
      ASSERT_EQ(from.size(), to.size());
      for (std::size_t k = 0; k < from.size(); ++k) {
        EXPECT_EQ(from[k].first, to[k].first);
        to[k].second.copy_(from[k].second);
      }
    }
  }
  other->set_steps_done(optimizer->steps_done());
  for (Units* units : {&whole, &resumed}) fill(*units, -1.5);
  optimizer->step(0.01, 1.0);
  other->step(0.01, 1.0);
  for (std::size_t u = 0; u < whole.all.size(); ++u) {
    EXPECT_TRUE(at::equal(whole.all[u]->flat_value(), resumed.all[u]->flat_value()));
  }
}

TEST(Optimizer, MastersHoldUpdatesThatBf16Loses) {
  Units units(at::kBFloat16);
  for (ParamUnit* unit : units.all) unit->flat_value().fill_(1.0);
  const auto optimizer = make_optimizer({.name = "sgd", .weight_decay = 0.0}, units.all);
  optimizer->allocate();
  for (ParamUnit* unit : units.all) unit->flat_grad().fill_(1.0);
  Param& weight = units.first.param("a.weight");
  optimizer->step(1e-3, 1.0);
  EXPECT_EQ(to_vector(weight.value)[0], 1.0);
  for (int i = 1; i < 10; ++i) optimizer->step(1e-3, 1.0);
  ASSERT_EQ(optimizer->state(weight).size(), 1U);
  const at::Tensor master = optimizer->state(weight)[0].second;
  EXPECT_EQ(optimizer->state(weight)[0].first, "master");
  EXPECT_EQ(master.scalar_type(), at::kFloat);
  EXPECT_NEAR(to_vector(master)[0], 0.99, 1e-6);
  EXPECT_EQ(to_vector(weight.value)[0], 0.98828125);
  EXPECT_EQ(to_vector(units.first.param("b.frozen").value)[0], 1.0);
}

TEST(Optimizer, StateExistsForTrainedParametersOnly) {
  Units units;
  const auto optimizer = make_optimizer({.name = "adamw"}, units.all);
  optimizer->allocate();
  EXPECT_TRUE(optimizer->state(units.first.param("b.frozen")).empty());
  const auto state = optimizer->state(units.first.param("b.weight"));
  ASSERT_EQ(state.size(), 2U);
  EXPECT_EQ(state[0].first, "exp_avg");
  EXPECT_EQ(state[1].first, "exp_avg_sq");
  EXPECT_EQ(state[0].second.sizes(), units.first.param("b.weight").value.sizes());
}

TEST(Optimizer, NormAndClipping) {
  Units units;
  units.first.param("a.gain").grad.fill_(2.0);  // 7 elements
  units.second.param("A.weight").grad[0][0] = 6.0;
  EXPECT_DOUBLE_EQ(norm_of(units.all), 8.0);
  EXPECT_EQ(clip_scale(8.0, 0.0), 1.0);
  EXPECT_EQ(clip_scale(0.5, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_scale(8.0, 1.0), 1.0 / (8.0 + 1e-6));
}

TEST(Optimizer, UnknownNamesAreRefused) {
  EXPECT_THROW(make_optimizer({.name = "adam"}, std::vector<ParamUnit*>()), ConfigError);
  EXPECT_THROW(make_optimizer({.name = "sgd", .nesterov = true}, std::vector<ParamUnit*>()),
               ConfigError);
}

}  // namespace
}  // namespace quatrain
