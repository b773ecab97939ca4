// SPDX-License-Identifier: Apache-2.0
// The tests' own mathematics.
#include "quatrain/nn/testing.h"

#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "quatrain/comm/self/self.h"
#include "quatrain/kernels/memory.h"

namespace quatrain::testing {

void poison_new_memory() {
  install_counting_allocator();
  at::globalContext().setDeterministicAlgorithms(true, true);
  at::globalContext().setDeterministicFillUninitializedMemory(true);
  at::manual_seed(20);
}

at::Tensor normal(std::vector<std::int64_t> shape, double scale) {
  return at::randn(shape, at::TensorOptions(at::kDouble)).mul_(scale);
}

at::Tensor below(std::int64_t bound, std::vector<std::int64_t> shape) {
  return at::randint(bound, shape, at::TensorOptions(at::kLong));
}

double relative_error(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return std::numeric_limits<double>::infinity();
  if (b.numel() == 0) return 0.0;
  const at::Tensor wide_b = b.detach().to(at::kDouble);
  const double difference = (a.detach().to(at::kDouble) - wide_b).abs().max().item<double>();
  const double size = wide_b.abs().max().item<double>();
  if (size == 0.0) return difference == 0.0 ? 0.0 : std::numeric_limits<double>::infinity();
  return difference / size;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) { return a.equal(b); }

std::unique_ptr<ParamUnit> random_unit(const std::vector<Shape>& shapes, at::ScalarType dtype) {
  std::vector<ParameterInfo> infos;
  for (const Shape& shape : shapes) {
    ParameterInfo& info = infos.emplace_back();
    info.name = shape.name;
    info.shape = shape.shape;
    info.trainable = shape.trainable;
  }
  auto unit = std::make_unique<ParamUnit>("test", std::move(infos), dtype, at::kCPU);
  unit->allocate(true);
  randomise(*unit);
  return unit;
}

void randomise(ParamUnit& unit, double scale) {
  for (Param& p : unit.params()) p.value.copy_(normal(p.local_shape, scale).add_(scale));
}

ParamRange range(ParamUnit& unit, std::string_view first, std::string_view last) {
  return {&unit, &unit.param(first), &unit.param(last)};
}

at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().requires_grad_(true); }

void add_leaves(Leaves& leaves, const ParamUnit& unit) {
  for (const Param& p : unit.params()) leaves[p.info.name] = leaf(p.value);
}

void expect_grads(const ParamUnit& unit, const Leaves& leaves, double tolerance) {
  double largest = 0.0;
  for (const Param& p : unit.params()) {
    if (p.grad.defined()) largest = std::max(largest, p.grad.abs().max().item<double>());
  }
  const double zero = 1e-13 * largest;
  for (const Param& p : unit.params()) {
    if (!p.info.trainable) {
      EXPECT_FALSE(p.grad.defined()) << p.info.name;
      continue;
    }
    const at::Tensor want = leaves.at(p.info.name).grad();
    ASSERT_TRUE(want.defined()) << p.info.name;
    if (want.abs().max().item<double>() <= zero) {
      EXPECT_LE(p.grad.abs().max().item<double>(), zero) << p.info.name;
    } else {
      EXPECT_LE(relative_error(p.grad, want), tolerance) << p.info.name;
    }
  }
}

const TensorParallel& alone() {
  static const std::unique_ptr<Communicator> rank = make_self_communicator("tp");
  static const TensorParallel group(*rank, {});
  return group;
}

const ModelRanks& alone_in_all() {
  static const std::unique_ptr<Communicator> rank = make_self_communicator("cp");
  static const ExpertParallel experts(*rank, {});
  static const ContextParallel context(*rank, {});
  static const ModelRanks ranks{alone(), experts, context};
  return ranks;
}

Pass make_pass(const PassOptions& options, GradSink& sink) {
  const auto ids = at::TensorOptions(at::kLong);
  Pass pass;
  pass.positions_BT =
      at::arange(options.seq, ids).expand({options.batch, options.seq}).contiguous();
  pass.sample_ids_B = at::arange(options.batch, ids);
  pass.loss_scale = options.loss_scale;
  pass.z_loss = options.z_loss;
  pass.seed = 7;
  pass.grads = &sink;
  if (options.vocab > 0) {
    pass.tokens_BT = below(options.vocab, {options.batch, options.seq});
    pass.labels_BT = below(options.vocab, {options.batch, options.seq});
  }
  return pass;
}

at::Tensor ref_norm(const at::Tensor& x, const at::Tensor& gain, const at::Tensor& bias,
                    double eps) {
  if (!bias.defined()) return x * (x.pow(2).mean(-1, true) + eps).rsqrt() * gain;
  const at::Tensor centred = x - x.mean(-1, true);
  return centred * (centred.pow(2).mean(-1, true) + eps).rsqrt() * gain + bias;
}

at::Tensor ref_rope(const at::Tensor& x_BTHd, const at::Tensor& positions_BT, double theta) {
  const std::int64_t half = x_BTHd.size(3) / 2;
  const at::Tensor exponent = at::arange(half, at::TensorOptions(at::kDouble)) / double(half);
  const at::Tensor frequency = (exponent * -std::log(theta)).exp();
  const at::Tensor angle = positions_BT.to(at::kDouble).unsqueeze(-1).unsqueeze(-1) * frequency;
  const at::Tensor a = x_BTHd.narrow(3, 0, half);
  const at::Tensor b = x_BTHd.narrow(3, half, half);
  return at::cat({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()}, 3);
}

at::Tensor ref_attention(const at::Tensor& q_BTHd, const at::Tensor& k_BTKd,
                         const at::Tensor& v_BTKd, std::int64_t window,
                         const at::Tensor& documents_BT) {
  const std::int64_t seq = q_BTHd.size(1);
  const std::int64_t group = q_BTHd.size(2) / k_BTKd.size(2);
  const at::Tensor q = q_BTHd.transpose(1, 2);
  const at::Tensor k = k_BTKd.transpose(1, 2).repeat_interleave(group, 1);
  const at::Tensor v = v_BTKd.transpose(1, 2).repeat_interleave(group, 1);
  const at::Tensor index = at::arange(seq, at::TensorOptions(at::kLong));
  const at::Tensor distance = index.unsqueeze(1) - index.unsqueeze(0);
  at::Tensor visible = distance.ge(0);
  if (window > 0) visible = visible.logical_and(distance.lt(window));
  visible = visible.unsqueeze(0).unsqueeze(0);
  if (documents_BT.defined()) {
    const at::Tensor same = documents_BT.unsqueeze(2).eq(documents_BT.unsqueeze(1));
    visible = visible.logical_and(same.unsqueeze(1));
  }
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) * scale;
  const at::Tensor masked =
      scores.masked_fill(visible.logical_not(), -std::numeric_limits<double>::infinity());
  return at::matmul(at::softmax(masked, -1), v).transpose(1, 2);
}

at::Tensor ref_mlp_activation(const ModelSpec& spec, const at::Tensor& gate, const at::Tensor& up) {
  if (spec.mlp == MlpKind::kSwiGlu) return gate * gate.sigmoid() * up;
  if (!spec.gelu_tanh) return 0.5 * up * (1.0 + at::erf(up / std::numbers::sqrt2));
  const double c = std::sqrt(2.0 / std::numbers::pi);
  return 0.5 * up * (1.0 + at::tanh(c * (up + 0.044715 * up.pow(3))));
}

at::Tensor ref_loss(const at::Tensor& logits_NV, const at::Tensor& labels_N, double z) {
  const at::Tensor trained = labels_N.ne(-100);
  const at::Tensor lse = logits_NV.logsumexp(1);
  const at::Tensor picked = logits_NV.gather(1, labels_N.clamp_min(0).unsqueeze(1)).squeeze(1);
  return ((lse - picked + z * lse.pow(2)) * trained.to(at::kDouble)).sum();
}

}  // namespace quatrain::testing
