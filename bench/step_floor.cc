// SPDX-License-Identifier: Apache-2.0
#include "step_floor.h"

#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/kernels/matmul.h"

namespace quatrain {
namespace {

constexpr std::int64_t kHeadRows = 512;  // whose logits exist at once

struct Matrix {
  at::Tensor w_OI, dw_OI;
  std::int64_t rows;  // of one product
};

std::vector<Matrix> matrices_of(const ModelSpec& spec) {
  std::vector<Matrix> all;
  const auto add = [&](std::int64_t out, std::int64_t in, std::int64_t rows) {
    const at::Tensor w_OI = at::randn({out, in});
    all.push_back({w_OI, at::zeros_like(w_OI), rows});
  };
  const std::int64_t d = spec.hidden, whole = 0;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    add((spec.heads + 2 * spec.kv_heads) * spec.head_dim, d, whole);
    add(d, spec.heads * spec.head_dim, whole);
    add(spec.mlp == MlpKind::kSwiGlu ? 2 * spec.ffn : spec.ffn, d, whole);
    add(d, spec.ffn, whole);
  }
  add(spec.vocab, d, kHeadRows);
  return all;
}

// Inputs stay as they are, so that no number grows from product to product.
struct Memory {
  at::Tensor inputs, outputs, input_grads;
};

// Forward, input half, weight half, over all rows.
void multiply(const Matrix& matrix, std::int64_t tokens, const Memory& memory) {
  const std::int64_t rows = matrix.rows > 0 ? std::min(matrix.rows, tokens) : tokens;
  const auto part = [rows](const at::Tensor& of, std::int64_t width) {
    return of.narrow(0, 0, rows * width).view({rows, width});
  };
  const at::Tensor x_NI = part(memory.inputs, matrix.w_OI.size(1));
  at::Tensor y_NO = part(memory.outputs, matrix.w_OI.size(0));
  at::Tensor dx_NI = part(memory.input_grads, matrix.w_OI.size(1));
  at::Tensor dw_OI = matrix.dw_OI;
  for (std::int64_t done = 0; done < tokens; done += rows) {
    kernels::matmul_out(y_NO, kernels::n(x_NI), kernels::t(matrix.w_OI));
    kernels::matmul_out(dx_NI, kernels::n(y_NO), kernels::n(matrix.w_OI));
    kernels::matmul_add(dw_OI, kernels::t(y_NO), kernels::n(x_NI));
  }
}

}  // namespace

nlohmann::json measure_floor(const BenchModel& model, const StepOptions& options) {
  if (model.spec.experts || model.spec.latent) {
    throw ConfigError("--floor: models with dense layers and plain attention");
  }
  const c10::InferenceMode inference;
  at::set_num_threads(options.threads);
  const std::vector<Matrix> matrices = matrices_of(model.spec);
  const std::int64_t tokens = model.batch * model.seq;
  std::int64_t most = 0;
  for (const Matrix& m : matrices) {
    const std::int64_t rows = m.rows > 0 ? std::min(m.rows, tokens) : tokens;
    most = std::max({most, rows * m.w_OI.size(0), rows * m.w_OI.size(1)});
  }
  const Memory memory{at::randn({most}), at::zeros({most}), at::zeros({most})};
  nlohmann::json seconds = nlohmann::json::array();
  for (int step = 0; step < options.warmup + options.steps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    for (const Matrix& matrix : matrices) multiply(matrix, tokens, memory);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (step >= options.warmup) seconds.push_back(took.count());
  }
  return {{"seconds", seconds}, {"tokens", tokens}};
}

}  // namespace quatrain
