// SPDX-License-Identifier: Apache-2.0
// Units, initial values, the stash's books, and the fast gradient sink.
#include <ATen/ops/full.h>

#include "quatrain/base/rng.h"
#include "quatrain/kernels/flops.h"
#include "quatrain/kernels/memory.h"
#include "quatrain/nn/check.h"
#include "quatrain/nn/linear.h"
#include "quatrain/nn/testing.h"
#include "quatrain/nn/unit_shard.h"

namespace quatrain {
namespace {

using testing::leaf;
using testing::normal;
using testing::range;
using testing::relative_error;

class Poison final : public ::testing::Environment {
  void SetUp() override { testing::poison_new_memory(); }
};
[[maybe_unused]] ::testing::Environment* const kPoison =
    ::testing::AddGlobalTestEnvironment(new Poison);

TEST(ParamUnit, ViewsLieEndToEndAndFrozenOnesHaveNoGradient) {
  auto unit =
      testing::random_unit({{"a", {2, 3}}, {"b", {4, 3}, false}, {"c", {1, 3}}, {"d", {3}}});
  EXPECT_EQ(unit->numel(), 24);
  EXPECT_EQ(unit->trainable_numel(), 12);
  EXPECT_EQ(unit->offset(unit->param("c")), 18);
  EXPECT_EQ(unit->grad_offset(unit->param("c")), 6);
  EXPECT_FALSE(unit->param("b").grad.defined());
  EXPECT_THROW(unit->grad_offset(unit->param("b")), BugError);
  EXPECT_THROW(unit->param("e"), BugError);
  const at::Tensor fused = unit->fused_value(unit->param("a"), unit->param("c"));
  ASSERT_EQ(fused.sizes(), at::IntArrayRef({7, 3}));
  EXPECT_TRUE(fused.narrow(0, 2, 4).equal(unit->param("b").value));
  EXPECT_THROW(unit->fused_value(unit->param("c"), unit->param("d")), BugError);
  EXPECT_EQ(unit->flat_grad().abs().max().item<double>(), 0.0);
  unit->param("a").grad.fill_(1.0);
  unit->zero_grads();
  EXPECT_EQ(unit->flat_grad().abs().max().item<double>(), 0.0);
}

TEST(ParamUnit, InitialValuesAreDrawsOfTheName) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    auto unit = testing::random_unit({{"x.weight", {130, 257}}, {"x.bias", {5}}}, dtype);
    unit->param("x.weight").info.init_std = 0.5;
    unit->param("x.bias").info.init = Init::kOnes;
    initialise(*unit, 42);
    const RandomStream stream(42, "x.weight");
    const at::Tensor got = unit->param("x.weight").value.to(at::kDouble).view({-1});
    for (const std::int64_t i : {0, 1, 16383, 16384, 33000}) {
      const double want = 0.5 * stream.normal(static_cast<std::uint64_t>(i));
      const double bound = dtype == at::kDouble ? 0.0 : dtype == at::kFloat ? 1e-6 : 1e-2;
      EXPECT_NEAR(got[i].item<double>(), want, bound);
    }
    EXPECT_EQ(unit->param("x.bias").value.to(at::kDouble).sum().item<double>(), 5.0);
  }
}

TEST(Stash, BooksEachStorageOnce) {
  MemoryOwner owner;
  {
    const ScopedMemoryOwner scope(&owner);
    Stash stash;
    at::Tensor x = at::zeros({4, 8}, at::TensorOptions(at::kFloat));
    EXPECT_EQ(owner.live()[MemoryCategory::kTransient], 128);
    stash.save(x, Until::kInput, "x");
    stash.save(x.narrow(0, 1, 2), Until::kWeight, "part");
    stash.save(at::zeros({2}, at::TensorOptions(at::kDouble)), Until::kInput, "s");
    x.reset();
    EXPECT_EQ(owner.live()[MemoryCategory::kActivations], 144);
    EXPECT_EQ(owner.live()[MemoryCategory::kTransient], 0);
    EXPECT_EQ(stash.bytes(), 144);
    EXPECT_EQ(stash.bytes(Until::kWeight), 128);
    EXPECT_EQ(stash.bytes(Until::kInput), 16);
    EXPECT_THROW(stash.save(stash.at("s"), Until::kInput, "s"), BugError);
    EXPECT_THROW(stash.at("y"), BugError);
    stash.drop_input_half();
    EXPECT_FALSE(stash.has("x"));
    EXPECT_EQ(stash.bytes(), 128);
    EXPECT_EQ(stash.take("part").size(0), 2);
    EXPECT_TRUE(stash.empty());
    stash.child(1).save(at::zeros({2}), Until::kWeight, "c");
    EXPECT_EQ(stash.bytes(), 8);
    EXPECT_FALSE(stash.empty());
    Stash nothing = Stash::discarding();
    nothing.save(at::zeros({2}), Until::kWeight, "c");
    nothing.child(0).save(at::zeros({2}), Until::kWeight, "c");
    EXPECT_TRUE(nothing.empty());
  }
  EXPECT_EQ(owner.live().total(), 0);
}

// One GEMM a run of trainable neighbours; only their columns.
TEST(AccumulatingSink, RangesWithFrozenMembers) {
  const at::Tensor dy = normal({5, 9});
  const at::Tensor x = normal({5, 3});
  for (int frozen = 0; frozen < 8; ++frozen) {
    auto unit = testing::random_unit({{"q", {4, 3}, (frozen & 1) == 0},
                                      {"k", {2, 3}, (frozen & 2) == 0},
                                      {"v", {3, 3}, (frozen & 4) == 0},
                                      {"qb", {4}, (frozen & 1) == 0},
                                      {"kb", {2}, (frozen & 2) == 0},
                                      {"vb", {3}, (frozen & 4) == 0}});
    AccumulatingSink sink;
    FlopCounter counter;
    const ScopedFlopCounter scope(&counter);
    for (int pass = 0; pass < 2; ++pass) {
      sink.outer(range(*unit, "q", "v"), dy, x);
      sink.rows(range(*unit, "qb", "vb"), dy);
    }
    const at::Tensor want = dy.t().mm(x) * 2.0;
    std::int64_t row = 0;
    std::int64_t trained = 0;
    for (const char* name : {"q", "k", "v"}) {
      const Param& w = unit->param(name);
      const Param& b = unit->param(std::string(name) + "b");
      const std::int64_t rows = w.local_shape[0];
      if (w.info.trainable) {
        trained += rows;
        EXPECT_LE(relative_error(w.grad, want.narrow(0, row, rows)), 1e-14) << frozen;
        EXPECT_LE(relative_error(b.grad, dy.sum(0).narrow(0, row, rows) * 2.0), 1e-14) << frozen;
      }
      row += rows;
    }
    EXPECT_EQ(counter.total(), 2 * 2 * 5 * 3 * trained);
  }
}

TEST(AccumulatingSink, IndexedRowsMayRepeat) {
  auto unit = testing::random_unit({{"table", {4, 3}}});
  AccumulatingSink sink;
  const at::Tensor ids = at::tensor(std::vector<std::int64_t>{1, 3, 1, 1});
  const at::Tensor dy = normal({4, 3});
  sink.indexed(range(*unit, "table"), ids, dy);
  EXPECT_LE(relative_error(unit->param("table").grad,
                           at::zeros({4, 3}, dy.options()).index_add(0, ids, dy)),
            1e-15);
}

// Gradients of bf16 parameters are summed in float32: 256 contributions of 2^-9 beside 1.
TEST(AccumulatingSink, case_124_small_contributions_survive_in_bf16) {
  auto unit = testing::random_unit({{"w", {1, 1}}, {"b", {1}}, {"e", {1, 1}}}, at::kBFloat16);
  AccumulatingSink sink;
  const auto one = at::ones({1, 1}, at::TensorOptions(at::kBFloat16));
  const at::Tensor id = at::zeros({1}, at::TensorOptions(at::kLong));
  for (int i = 0; i <= 256; ++i) {
    const at::Tensor dy = i == 0 ? one : one * std::ldexp(1.0, -9);
    sink.outer(range(*unit, "w"), dy, one);
    sink.rows(range(*unit, "b"), dy);
    sink.indexed(range(*unit, "e"), id, dy);
  }
  for (const Param& p : unit->params()) {
    EXPECT_EQ(p.grad.scalar_type(), at::kFloat);
    EXPECT_EQ(p.grad.item<float>(), 1.5F) << p.info.name;
  }
}

// y = x W W: both uses of one weight count, each once.
TEST(Linear, case_028_a_weight_used_twice) {
  auto unit = testing::random_unit({{"w", {3, 3}}});
  const Linear layer(range(*unit, "w"));
  AccumulatingSink sink;
  const at::Tensor x = normal({4, 3});
  const at::Tensor dy = normal({4, 3});
  const at::Tensor middle = layer.forward(x);
  const at::Tensor dmiddle = layer.backward_input(dy);
  layer.backward_weight(sink, dmiddle, x);  // weight halves in the other order
  layer.backward_weight(sink, dy, middle);
  const at::Tensor w = leaf(unit->param("w").value);
  x.mm(w.t()).mm(w.t()).backward(dy);
  EXPECT_LE(relative_error(unit->param("w").grad, w.grad()), 1e-13);
}

}  // namespace
}  // namespace quatrain
