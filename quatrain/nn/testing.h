// SPDX-License-Identifier: Apache-2.0
// For tests: the layers' mathematics once more, in plain ATen operations for autograd, written
// without a look at the layers; comparison by relative error; poisoned memory.
// Shapes: B sequences, T positions, D hidden, H heads, K kv heads, d head dim, V vocabulary.
#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "quatrain/nn/layer.h"
#include "quatrain/nn/param.h"
#include "quatrain/nn/block_parts.h"
#include "quatrain/nn/context_parallel.h"
#include "quatrain/nn/expert_parallel.h"
#include "quatrain/nn/tensor_parallel.h"
#include "quatrain/spec/model_spec.h"

namespace quatrain::testing {

// From here on every at::empty of this process holds NaN (case 137), and memory is counted.
void poison_new_memory();

at::Tensor normal(std::vector<std::int64_t> shape, double scale = 1.0);  // float64
at::Tensor below(std::int64_t bound, std::vector<std::int64_t> shape);   // int64 in [0, bound)

// max|a - b| / max|b|; a tensor that must be zero is zero.
double relative_error(const at::Tensor& a, const at::Tensor& b);
bool same_bits(const at::Tensor& a, const at::Tensor& b);

struct Shape {
  std::string name;
  std::vector<std::int64_t> shape;
  bool trainable = true;
};
// A unit with random values and zeroed gradients.
std::unique_ptr<ParamUnit> random_unit(const std::vector<Shape>& shapes,
                                       at::ScalarType dtype = at::kDouble);
void randomise(ParamUnit& unit, double scale = 0.3);
ParamRange range(ParamUnit& unit, std::string_view first, std::string_view last);
inline ParamRange range(ParamUnit& unit, std::string_view name) { return range(unit, name, name); }

// Copies of parameters that take part in autograd, by name.
using Leaves = std::map<std::string, at::Tensor>;
at::Tensor leaf(const at::Tensor& x);
void add_leaves(Leaves& leaves, const ParamUnit& unit);
// Every gradient of the unit against autograd's; frozen parameters have none. Gradients that are
// zero but for rounding (a key's bias without rotary positions; queries that see one key) stay so:
// both below 1e-13 of the unit's largest.
void expect_grads(const ParamUnit& unit, const Leaves& leaves, double tolerance);

// The tensor-parallel group of one rank.
const TensorParallel& alone();
const ModelRanks& alone_in_all();

// Positions 0..T-1, sample ids 0..B-1, the accumulating sink, labels where asked for.
struct PassOptions {
  std::int64_t batch, seq, vocab = 0;
  double loss_scale = 1.0;
  double z_loss = 0.0;
};
Pass make_pass(const PassOptions& options, GradSink& sink);

at::Tensor ref_norm(const at::Tensor& x, const at::Tensor& gain, const at::Tensor& bias,
                    double eps);
at::Tensor ref_rope(const at::Tensor& x_BTHd, const at::Tensor& positions_BT, double theta);
at::Tensor ref_attention(const at::Tensor& q_BTHd, const at::Tensor& k_BTKd,
                         const at::Tensor& v_BTKd, std::int64_t window,
                         const at::Tensor& documents_BT);
at::Tensor ref_mlp_activation(const ModelSpec& spec, const at::Tensor& gate, const at::Tensor& up);
// Sum over labelled rows of -log p + z * lse^2.
at::Tensor ref_loss(const at::Tensor& logits_NV, const at::Tensor& labels_N, double z);

}  // namespace quatrain::testing
